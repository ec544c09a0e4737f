#include "kernels/gemm/sm90_tile.h"

#include <algorithm>

namespace mkernel::kernels {
namespace {

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t by) {
  return (value + by - 1) / by;
}

/// Cycles of one step along k on one SM: the tensor cores' (4096 operations a cycle), divided by what this
/// tile reaches of that once many SMs share L2. Smaller tiles load more for each product.
double step_cycles(Sm90Tile tile) {
  const double ideal = 2.0 * tile_rows(tile) * tile_columns(tile) * kSm90TileK / 4096;
  switch (tile) {
    case Sm90Tile::k128x256: return ideal / 0.95;
    case Sm90Tile::k256x128: return ideal / 0.93;
    case Sm90Tile::k128x128: return ideal / 0.75;
    case Sm90Tile::k128x64: break;
  }
  return ideal / 0.55;
}

/// Cluster tiles side by side in one band: with about as many columns as rows at a time, loads are fewest.
std::int32_t band_rows(Sm90Tile tile, std::int32_t clusters) {
  const double height = tile_rows(tile) * tile_cluster(tile);
  const double width = tile_columns(tile);
  std::int32_t band = 1;
  while ((band + 1) * height * (band + 1) * height <= clusters * height * width) ++band;
  return band;
}

double estimated_cycles(const GemmShape& shape, const Sm90Plan& plan) {
  constexpr double kTileCycles = 1200;  // filling the pipeline, writing the sums
  const std::int64_t clusters = plan.ctas / tile_cluster(plan.tile);
  const std::int64_t waves = ceil_div(plan.raster.tiles(), clusters);
  return static_cast<double>(waves) *
         (static_cast<double>(ceil_div(shape.k, kSm90TileK)) * step_cycles(plan.tile) + kTileCycles);
}

}  // namespace

Sm90Plan plan_sm90(const GemmShape& shape, std::int32_t sms, Sm90Tile tile) {
  const std::int32_t cluster = tile_cluster(tile);
  const std::int32_t clusters = std::max(1, sms / cluster);
  Sm90Plan plan{.tile = tile};
  plan.raster.rows = static_cast<std::int32_t>(ceil_div(shape.m, tile_rows(tile) * cluster));
  plan.raster.columns = static_cast<std::int32_t>(ceil_div(shape.n, tile_columns(tile)));
  plan.raster.band = std::min(plan.raster.rows, band_rows(tile, clusters));
  plan.ctas = std::min(plan.raster.tiles(), clusters) * cluster;
  return plan;
}

Sm90Plan plan_sm90(const GemmShape& shape, std::int32_t sms) {
  Sm90Plan best = plan_sm90(shape, sms, kSm90Tiles[0]);
  for (const Sm90Tile tile : kSm90Tiles) {
    const Sm90Plan plan = plan_sm90(shape, sms, tile);
    if (estimated_cycles(shape, plan) < estimated_cycles(shape, best)) best = plan;
  }
  return best;
}

}  // namespace mkernel::kernels

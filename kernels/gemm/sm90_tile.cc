#include "kernels/gemm/sm90_tile.h"

#include <algorithm>
#include <cmath>

namespace mkernel::kernels {
namespace {

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t by) {
  return (value + by - 1) / by;
}

/// Bytes that one CTA asks L2 for in one step along k; what the neighbour multicasts is not asked for.
double step_bytes(Sm90Tile tile, Sm90Cluster cluster) {
  const double a = static_cast<double>(tile_rows(tile)) / cluster_columns(cluster);
  const double b = static_cast<double>(tile_columns(tile)) / cluster_rows(tile, cluster);
  return (a + b) * kSm90TileK * 2;
}

/// Cycles of one step along k on one SM: the tensor cores' (4096 operations a cycle, 95 % of them reached) or
/// those of L2 (48 bytes a cycle and SM while all ask), rounded between the two as measured on an H200.
double step_cycles(Sm90Tile tile, Sm90Cluster cluster) {
  const double compute = 2.0 * tile_rows(tile) * tile_columns(tile) * kSm90TileK / 4096 / 0.95;
  const double load = step_bytes(tile, cluster) / 48;
  return std::pow(std::pow(compute, 4) + std::pow(load, 4), 0.25);
}

/// Cluster tiles in one band: a block of tiles that is as high as wide loads least.
std::int32_t band_rows(Sm90Tile tile, Sm90Cluster cluster, std::int32_t clusters) {
  const double height = tile_rows(tile) * cluster_rows(tile, cluster);
  const double width = tile_columns(tile) * cluster_columns(cluster);
  return std::max(1, static_cast<std::int32_t>(std::sqrt(clusters * width / height)));
}

double estimated_cycles(const GemmShape& shape, const Sm90Plan& plan) {
  // Filling the pipeline and writing the sums, as far as the next tile does not hide them.
  const double tile_cycles = 600 + 600.0 * tile_rows(plan.tile) * tile_columns(plan.tile) / (128 * 256);
  const std::int64_t clusters =
      plan.ctas / (cluster_rows(plan.tile, plan.cluster) * cluster_columns(plan.cluster));
  const std::int64_t waves = ceil_div(plan.raster.tiles(), clusters);
  const auto steps = static_cast<double>(ceil_div(shape.k, kSm90TileK));
  return static_cast<double>(waves) * (steps * step_cycles(plan.tile, plan.cluster) + tile_cycles);
}

Sm90Plan better(const GemmShape& shape, const Sm90Plan& one, const Sm90Plan& other) {
  return estimated_cycles(shape, other) < estimated_cycles(shape, one) ? other : one;
}

}  // namespace

Sm90Plan plan_sm90(const GemmShape& shape, std::int32_t sms, Sm90Tile tile, Sm90Cluster cluster) {
  const std::int32_t rows = cluster_rows(tile, cluster), columns = cluster_columns(cluster);
  const std::int32_t clusters = std::max(1, sms / (rows * columns));
  Sm90Plan plan{.tile = tile, .cluster = cluster};
  plan.raster.rows = static_cast<std::int32_t>(ceil_div(shape.m, tile_rows(tile) * rows));
  plan.raster.columns = static_cast<std::int32_t>(ceil_div(shape.n, tile_columns(tile) * columns));
  plan.raster.band = std::min(plan.raster.rows, band_rows(tile, cluster, clusters));
  plan.ctas = std::min(plan.raster.tiles(), clusters) * rows * columns;
  return plan;
}

Sm90Plan plan_sm90(const GemmShape& shape, std::int32_t sms) {
  Sm90Plan best = plan_sm90(shape, sms, kSm90Tiles[0]);
  for (const Sm90Tile tile : kSm90Tiles) best = better(shape, best, plan_sm90(shape, sms, tile));
  return best;
}

Sm90Plan plan_sm90_any_cluster(const GemmShape& shape, std::int32_t sms) {
  Sm90Plan best = plan_sm90(shape, sms);
  for (const Sm90Tile tile : kSm90Tiles) {
    best = better(shape, best, plan_sm90(shape, sms, tile, Sm90Cluster::kSideBySide));
  }
  return best;
}

}  // namespace mkernel::kernels

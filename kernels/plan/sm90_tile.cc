#include "kernels/plan/sm90_tile.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/plan/cuts.h"
#include "kernels/plan/machine.h"

namespace mkernel::kernels {
namespace {

/// Cycles of one step along k on one SM whose tile has so many columns: the tensor cores' or those of L2
/// (what the neighbour multicasts is not asked for), rounded between the two as measured on an H200. Rows
/// that `a_box_rows` leaves out are multiplied, but not loaded. `asking`: share of the SMs that have a tile.
/// The narrow tiles of large tiles load a fifth less than is counted here. With the right count some plans of
/// AG+GEMM were better and some worse, by up to 7 % (tests/perf/notes.md).
double step_cycles(const Machine& machine, std::int32_t a_box_rows, double columns, const TileSize& of,
                   Sm90Cluster cluster, double asking) {
  const double compute =
      2.0 * of.rows * columns * kSm90TileK / machine.tensor_operations / machine.tensor_share;
  const double bytes = (a_box_rows + columns / cluster_rows(of, cluster)) * kSm90TileK * 2;
  const double load = bytes / machine.l2_bytes * asking;
  return std::pow(std::pow(compute, 4) + std::pow(load, 4), 0.25);
}

/// Cluster tiles in one band of the plan's raster: a block of as many as run in `clusters` loads least when
/// it is as high as wide.
std::int32_t band_rows(const Sm90Plan& plan, std::int32_t clusters) {
  const double height = plan.tile.rows * cluster_rows(plan.tile, plan.cluster);
  const double width = plan.tile.columns * cluster_columns(plan.cluster);
  return std::clamp(static_cast<std::int32_t>(std::sqrt(clusters * width / height)), 1, plan.raster.rows());
}

/// `plan` with low bands, where no cluster has more than a tile and tiles are small. Whatever the order, L2
/// then has what they read; what counts is what the SMs of a GPC ask for at a time, which reaches L2 once.
/// About every eighth cluster lies in the same GPC. In low bands those share columns; in bands of eight rows
/// they would share rows, which a cluster gets by multicast, and multicasts reach L2 one by one
/// (tests/perf/notes.md).
Sm90Plan with_low_bands(const Machine& machine, Sm90Plan plan) {
  constexpr std::int32_t kLargeTile = 128 * 256;
  const bool small_tile = plan.tile.rows * plan.tile.columns < kLargeTile;
  if (small_tile && plan.raster.tiles() <= plan.clusters())
    plan.raster = plan.raster.with_band(band_rows(plan, machine.gpc_sms / plan.cluster_ctas()));
  return plan;
}

/// Of one tile of `columns` columns: its steps, and filling the pipeline and writing the sums as far as the
/// next tile does not hide them.
double tile_cycles(const Machine& machine, std::int64_t k, const TileSize& tile, Sm90Cluster cluster,
                   std::int32_t a_box_rows, double columns, double asking) {
  return static_cast<double>(ceil_div(k, kSm90TileK)) *
             step_cycles(machine, a_box_rows, columns, tile, cluster, asking) +
         600 + 600 * tile.rows * columns / (128 * 256);
}

Sm90Plan better(const GemmShape& shape, const Machine& machine, const Sm90Plan& one, const Sm90Plan& other) {
  return estimated_cycles(shape, machine, other) < estimated_cycles(shape, machine, one) ? other : one;
}

}  // namespace

double tile_cycles(const Machine& machine, std::int64_t k, const TileSize& tile, std::int32_t columns,
                   std::int32_t a_box_rows, Sm90Cluster cluster) {
  return tile_cycles(machine, k, tile, cluster, a_box_rows, columns, 1);
}

double estimated_cycles(const GemmShape& shape, const Machine& machine, const Sm90Plan& plan) {
  const std::int64_t clusters = plan.clusters();
  const auto waves = static_cast<double>(ceil_div(plan.whole, clusters));
  const auto tile = [&](std::int32_t columns, double asking) {
    return tile_cycles(machine, shape.k, plan.tile, plan.cluster, plan.a_box_rows(shape.m), columns, asking);
  };
  const double cycles = waves * tile(plan.tile.columns, 1);
  const std::int64_t left = (plan.raster.tiles() - plan.whole) * tail_parts(plan.tile);
  if (left == 0) return cycles;
  const double asking = std::min(1.0, static_cast<double>(left) / static_cast<double>(clusters));
  return cycles + static_cast<double>(ceil_div(left, clusters)) * tile(kSm90TailColumns, asking);
}

Sm90Plan with_best_tail(const GemmShape& shape, const Machine& machine, Sm90Plan plan) {
  plan.whole = plan.raster.tiles();
  if (!has_tail(plan.tile)) return plan;
  Sm90Plan cut = plan;
  cut.whole -= cut.whole % plan.clusters();
  return better(shape, machine, plan, cut);
}

Sm90Plan plan_sm90(const GemmShape& shape, const Machine& machine, const TileSize& tile,
                   Sm90Cluster cluster) {
  const std::int32_t rows = cluster_rows(tile, cluster), columns = cluster_columns(cluster);
  const std::int32_t clusters = std::max(1, machine.sms / (rows * columns));
  Sm90Plan plan{.tile = tile, .cluster = cluster};
  plan.raster = Raster(static_cast<std::int32_t>(ceil_div(shape.m, tile.rows * rows)),
                       static_cast<std::int32_t>(ceil_div(shape.n, tile.columns * columns)));
  plan.raster = plan.raster.with_band(band_rows(plan, clusters));
  plan.ctas = std::min(plan.raster.tiles(), clusters) * rows * columns;
  plan.whole = plan.raster.tiles();
  return plan;
}

Sm90Plan plan_sm90(const GemmShape& shape, const Machine& machine) {
  Sm90Plan best = plan_sm90(shape, machine, kSm90Tiles[0]);
  for (const Sm90Tile tile : kSm90Tiles) best = better(shape, machine, best, plan_sm90(shape, machine, tile));
  return best;
}

Sm90Plan plan_sm90_any_cluster(const GemmShape& shape, const Machine& machine) {
  std::optional<Sm90Plan> best;
  for (const Sm90Cluster cluster : {Sm90Cluster::kStacked, Sm90Cluster::kSideBySide}) {
    for (const Sm90Tile tile : kSm90Tiles) {
      const Sm90Plan plan = with_best_tail(shape, machine, plan_sm90(shape, machine, tile, cluster));
      best = best ? better(shape, machine, *best, plan) : plan;
    }
  }
  return with_low_bands(machine, *best);
}

}  // namespace mkernel::kernels

#include "kernels/ops/ag_gemm/estimate.h"

#include <algorithm>
#include <cmath>

namespace mkernel::kernels {
namespace {

constexpr double kPieceBytes = 16384;  ///< that one load of whole rows takes

/// For `bytes` of a chunk to `stores` places, `links` of them behind NVLink.
double push_seconds(const Machine& machine, double bytes, std::int32_t stores, std::int32_t links,
                    std::int32_t ctas) {
  return std::pow(std::pow(bytes * stores / (ctas * machine.push_bytes), 4) +
                      std::pow(bytes * links / machine.links_bulk, 4),
                  0.25);
}

/// For `bytes` of a chunk on their way from memory into the pushing CTAs: what counts when they go to few
/// places.
double load_seconds(const AgGemmPlan& plan, double bytes) {
  if (plan.rails() > 0) return bytes / (plan.comm_ctas * plan.machine.prepare_bytes);
  const double loads =
      plan.gather.row.parts > 1 ? static_cast<double>(plan.gather.block_rows) : bytes / kPieceBytes;
  return (bytes / plan.machine.load_bytes + loads * plan.machine.load_seconds) / plan.comm_ctas;
}

/// Seconds from chunk to chunk, and to a tile.
struct Pace {
  const AgGemmPlan& plan;
  double own;   ///< stored at the other ranks of the node, and where it is put from
  double wire;  ///< put to one rail peer
  double far;   ///< that came from another node, stored at the other ranks

  /// When part `part` of the rows of a step of the raster is there.
  double arrival(std::int32_t row, std::int32_t part) const {
    const ArrivalSteps::Place step = plan.steps.place(row);
    if (step.source == plan.steps.rank) return 0;
    const double chunk = filled(step);
    const double before = step.block * plan.gather.row.parts + part * chunk, with = before + chunk;
    if (step.turn <= plan.steps.near) return plan.machine.launch + plan.machine.push_latency + with * own;
    const std::int32_t nodes_back = step.turn / (plan.steps.near + 1) - 1;
    const double puts = before * plan.rails() + nodes_back;  // before it, on either end of the wire
    const double sent = std::max(with * own + (nodes_back + 1) * wire, own + (puts + 1) * wire);
    const double pushed = own_chunks() * own + puts * far;
    return plan.machine.launch + std::max(plan.machine.wire_latency + sent, pushed) + far +
           plan.machine.push_latency;
  }
  /// When own rows are out.
  double pushed() const { return plan.machine.launch + own_chunks() * own + plan.machine.push_latency; }
  double run(double now, std::int32_t row, double cycles) const {
    const std::int32_t parts = plan.gather.row.parts;
    for (std::int32_t part = 0; part < parts; ++part)
      now = std::max(now, arrival(row, part)) + cycles / plan.machine.clock / parts;
    return now;
  }

 private:
  /// How much of a chunk there is where the last block of a source has few rows.
  double filled(const ArrivalSteps::Place& step) const {
    const double rows = plan.gather.block_rows;
    return std::clamp(static_cast<double>(plan.gather.rows_of(step.source)) / rows - step.block, 0.0, 1.0);
  }
  /// As many as they would be whole.
  double own_chunks() const {
    const double rows = plan.gather.block_rows, parts = plan.gather.row.parts;
    return static_cast<double>(plan.gather.rows_of(plan.steps.rank)) / rows * parts;
  }
};

Pace pace_of(const AgGemmPlan& plan) {
  const double chunk_bytes = static_cast<double>(plan.gather.block_rows * plan.gather.row.row_bytes) /
                             static_cast<double>(plan.gather.row.parts);
  const std::int32_t near = plan.steps.near;
  const double loaded = load_seconds(plan, chunk_bytes);
  return {
      .plan = plan,
      .own = std::max(loaded, push_seconds(plan.machine, chunk_bytes, plan.stores(), near, plan.comm_ctas)),
      .wire = chunk_bytes / plan.machine.nic,
      .far = near > 0 ? std::max(loaded, push_seconds(plan.machine, chunk_bytes, near, near, plan.comm_ctas))
                      : 0};
}

}  // namespace

double estimated_seconds(const GemmShape& shape, const AgGemmPlan& plan) {
  const std::int32_t clusters = plan.compute_ctas / plan.tile.cluster;
  const std::int32_t parts = tail_parts(plan.tile);
  const double whole = tile_cycles(plan.machine, shape.k, plan.tile, plan.tile.columns);
  const double narrow = tile_cycles(plan.machine, shape.k, plan.tile, kSm90TailColumns);
  const Pace pace = pace_of(plan);
  const auto end_of = [&](std::int32_t cluster, double now) {
    for (std::int32_t i = 0; i < plan.assignment.tiles(cluster, clusters); ++i)
      now = pace.run(now, plan.assignment.place(i, cluster, clusters).tile.row, whole);
    for (std::int32_t i = 0; i < plan.assignment.tail_tiles(cluster, clusters, parts); ++i)
      now = pace.run(now, plan.assignment.tail_place(i, cluster, clusters, parts).tile.row, narrow);
    return now;
  };
  double last = 0;
  for (std::int32_t cluster = 0; cluster < clusters; ++cluster)
    last = std::max(last, end_of(cluster, plan.machine.launch));
  if (plan.assignment.late > 0) {
    for (std::int32_t cluster = 0; cluster < plan.assignment.late_clusters; ++cluster)
      last = std::max(last, end_of(-1 - cluster, pace.pushed()));
  }
  return last + plan.machine.last_stores;
}

std::int32_t tiles_after_pushing(const GemmShape& shape, const AgGemmPlan& plan) {
  const double tile = tile_cycles(plan.machine, shape.k, plan.tile, plan.tile.columns) / plan.machine.clock;
  const double left = estimated_seconds(shape, plan) - plan.machine.last_stores - pace_of(plan).pushed();
  return std::max(0, static_cast<std::int32_t>(left / tile));
}

}  // namespace mkernel::kernels

#include <algorithm>
#include <cstdint>

#include "kernels/ops/ag_gemm/plan.h"
#include "kernels/plan/cuts.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {

namespace {

constexpr double kPieceBytes = 16384;  ///< that one load of whole rows takes

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
  double skew;  ///< by which the other ranks may have begun later

  /// When part `part` of the rows of a row block is there; of one that sources share, when the last of all
  /// sources is.
  double arrival(std::int32_t row, std::int32_t part) const {
    if (!plan.gather.shared) return arrival(plan.steps.place(row), part);
    double last = 0;
    for (std::int32_t step = 0; step < plan.steps.steps(); ++step)
      last = std::max(last, arrival(plan.steps.place(step), part));
    return last;
  }
  /// When part `part` of a source's block is there.
  double arrival(const ArrivalSteps::Place& step, std::int32_t part) const {
    if (step.source == plan.steps.rank && !plan.gather.shared) return 0;
    const double chunk = filled(step);
    const double before = step.block * plan.gather.row.parts + part * chunk, with = before + chunk;
    const double launch = plan.machine.launch + skew;
    if (step.turn <= plan.steps.near) return launch + plan.machine.push_latency + with * own;
    const std::int32_t nodes_back = step.turn / (plan.steps.near + 1) - 1;
    const double puts = before * plan.rails() + nodes_back;  // before it, on either end of the wire
    const double sent = std::max(with * own + (nodes_back + 1) * wire, own + (puts + 1) * wire);
    const double pushed = own_chunks() * own + puts * far;
    return launch + std::max(plan.machine.wire_latency + sent, pushed) + far + plan.machine.push_latency;
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

Pace pace_of(const AgGemmPlan& plan, double skew = 0) {
  const double chunk_bytes = static_cast<double>(plan.gather.block_rows * plan.gather.row.row_bytes) /
                             static_cast<double>(plan.gather.row.parts);
  const std::int32_t near = plan.steps.near;
  const double loaded = load_seconds(plan, chunk_bytes);
  return {
      .plan = plan,
      .own = std::max(loaded, push_seconds(plan.machine, chunk_bytes, plan.stores(), near, plan.comm_ctas)),
      .wire = chunk_bytes / plan.machine.nic,
      .far = near > 0 ? std::max(loaded, push_seconds(plan.machine, chunk_bytes, near, near, plan.comm_ctas))
                      : 0,
      .skew = skew};
}

double tile_cycles_of(const GemmShape& shape, const AgGemmPlan& plan, std::int32_t columns) {
  return tile_cycles(plan.machine, shape.k, plan.tile, columns, plan.a_box_rows(), plan.cluster);
}

/// Of every b, once.
double bytes_of_b(const GemmShape& shape) {
  double bytes = 0;
  for (int product = 0; product < products_of(shape); ++product)
    bytes += 2.0 * static_cast<double>(shape.k) * static_cast<double>(columns_of(shape, product));
  return bytes;
}

/// How often every b comes from memory: once for each band of tiles, unless L2 keeps it.
std::int64_t readings_of_b(const GemmShape& shape, const AgGemmPlan& plan) {
  const Raster& raster = plan.assignment.raster;
  return bytes_of_b(shape) <= plan.machine.l2_keeps ? 1 : ceil_div(raster.rows(), raster.band());
}

/// When every b has been read, from the arrival of the first rows on: few rows are multiplied faster than
/// that, and low bands.
double memory_end(const GemmShape& shape, const Pace& pace) {
  const Machine& machine = pace.plan.machine;
  const double bytes = bytes_of_b(shape) * static_cast<double>(readings_of_b(shape, pace.plan));
  return std::max(machine.launch, pace.arrival(0, 0)) + bytes / machine.memory_bytes;
}

/// What it costs the product that b is read again.
double rereading_seconds(const GemmShape& shape, const AgGemmPlan& plan) {
  const auto again = static_cast<double>(readings_of_b(shape, plan) - 1);
  return bytes_of_b(shape) * again / plan.machine.reread_bytes;
}

}  // namespace

double estimated_seconds(const GemmShape& shape, const AgGemmPlan& plan, double skew) {
  const std::int32_t clusters = plan.compute_ctas / plan.tile.cluster;
  const std::int32_t parts = tail_parts(plan.tile);
  const double whole = tile_cycles_of(shape, plan, plan.tile.columns);
  const double narrow = tile_cycles_of(shape, plan, kSm90TailColumns);
  const auto turns = static_cast<double>(ceil_div(plan.assignment.raster.tiles(), clusters));
  const Pace pace = pace_of(plan, skew * turns * whole / plan.machine.clock);
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
  return std::max(last, memory_end(shape, pace)) + rereading_seconds(shape, plan) + plan.machine.last_stores;
}

double least_seconds(const GemmShape& shape, const AgGemmPlan& plan) {
  const std::int32_t clusters = plan.compute_ctas / plan.tile.cluster;
  const double cycles =
      plan.assignment.whole * tile_cycles_of(shape, plan, plan.tile.columns) +
      plan.assignment.tail() * tail_parts(plan.tile) * tile_cycles_of(shape, plan, kSm90TailColumns);
  return plan.machine.launch + cycles / clusters / plan.machine.clock + rereading_seconds(shape, plan) +
         plan.machine.last_stores;
}

std::int32_t tiles_after_pushing(const GemmShape& shape, const AgGemmPlan& plan) {
  const double tile = tile_cycles_of(shape, plan, plan.tile.columns) / plan.machine.clock;
  const double left = estimated_seconds(shape, plan) - plan.machine.last_stores - pace_of(plan).pushed();
  return std::max(0, static_cast<std::int32_t>(left / tile));
}

bool pushes_in_time(const GemmShape& shape, const AgGemmPlan& plan) {
  const std::int64_t own = ceil_div(plan.gather.rows_of(plan.steps.rank), plan.gather.block_rows);
  if (plan.gather.shared || own % plan.assignment.raster.band() != 0) return false;
  const std::int32_t clusters = plan.compute_ctas / plan.tile.cluster;
  const double turns = static_cast<double>(own * plan.columns.tiles) / clusters;
  const double multiplied = turns * tile_cycles_of(shape, plan, plan.tile.columns) / plan.machine.clock;
  return pace_of(plan).pushed() <= 2 * multiplied;
}

}  // namespace mkernel::kernels

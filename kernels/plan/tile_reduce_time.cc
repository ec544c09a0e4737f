#include "kernels/plan/tile_reduce_time.h"

#include <algorithm>

#include "kernels/plan/tile_reduce_plan.h"

namespace mkernel::kernels {
namespace {

/// How often an element crosses the links or the wire: as a partial; of GEMM+AR as a finished sum too, unless
/// every rank sums for itself.
double crossings(OpKind kind, bool to_all = false) {
  return kind == OpKind::kGemmAr && !to_all ? 2 : 1;
}

/// Seconds from a store to the sum or the copy that begins with it. Data that say themselves that they have
/// come (PushReducePlan::kMark) take a third of the time of those with a word behind a fence: 2 us less were
/// measured (tests/perf/notes.md).
double push_seconds_of(const Machine& machine, bool marked) {
  return marked ? machine.push_latency / 3 : machine.push_latency;
}

/// Seconds from the last store of a product to the last sum that somebody has, beside what links and wire
/// carry: of partials, and of finished sums where these are sent on. `wire`: whether they cross nodes.
double arrival_seconds(OpKind kind, const TileReducePlan& plan, bool wire) {
  const Machine& machine = plan.machine;
  const bool to_all = plan.reduce.to_all;
  double seconds = push_seconds_of(machine, plan.reduce.marked);
  if (crossings(kind, to_all) > 1) seconds += push_seconds_of(machine, plan.marks_sums());
  return seconds + (wire ? crossings(kind, to_all) * machine.wire_latency : 0);
}

double elements_of(const GemmShape& shape) {
  return static_cast<double>(shape.m) * static_cast<double>(shape.n);
}

/// Seconds of the sums that follow the product, made by all warps together: of every element so many bytes
/// are read and written. Finished sums are pushed on and copied, unless every rank makes all of them.
double sum_seconds(OpKind kind, const GemmShape& shape, const TileReducePlan& plan) {
  const double sources = plan.reduce.sources, world = plan.reduce.world;
  const double summed = plan.reduce.to_all ? 1 : plan.reduce.nodes() / world;
  double bytes = 2 * (sources + 1) * summed;
  if (plan.reduce.marked) bytes += 2 * sources * summed;  // the marks
  if (kind == OpKind::kGemmAr && !plan.reduce.to_all) {
    bytes += 2 * (sources - 1) / sources + 4;
    if (plan.marks_sums()) bytes += 2 * (sources - 1) / sources;  // likewise
  }
  return elements_of(shape) * bytes / (plan.machine.sum_bytes * plan.machine.sms);
}

}  // namespace

double product_seconds(const GemmShape& shape, const Machine& machine) {
  return 2.0 * static_cast<double>(shape.k) / (machine.product_operations * machine.sms);
}

double link_seconds(OpKind kind, std::int32_t sources, const Machine& machine) {
  return crossings(kind) * 2.0 * (sources - 1) / sources / machine.links_store;
}

double estimated_seconds(OpKind kind, const GemmShape& shape, const TileReducePlan& plan) {
  const Machine& machine = plan.machine;
  const double tile =
      tile_cycles(machine, shape.k, plan.tile, plan.tile.columns, plan.a_box_rows()) / machine.clock;
  const auto waves = static_cast<double>(plan.waves(plan.reduce_ctas));
  const double operands = 2.0 * static_cast<double>(shape.k) * static_cast<double>(shape.m + shape.n);
  const double product = std::max(waves * tile, operands / machine.memory_bytes);
  if (plan.tiles.turns() == 1) return machine.launch + product + machine.last_stores;
  const bool to_all = plan.reduce.to_all;
  const double links = elements_of(shape) * (to_all ? 2.0 * (plan.reduce.sources - 1) / machine.links_store
                                                    : link_seconds(kind, plan.reduce.sources, machine));
  const double wire = crossings(kind, to_all) * static_cast<double>(plan.wire_bytes()) / machine.nic;
  const double arrives = arrival_seconds(kind, plan, wire > 0);
  const double sums = plan.shared.any() ? sum_seconds(kind, shape, plan) : 0;
  return machine.launch + std::max(product, product / waves + std::max(links, wire)) + arrives + sums +
         machine.last_stores;
}

}  // namespace mkernel::kernels

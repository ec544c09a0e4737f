#include "kernels/ops/ring_attention/backward/plan.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "kernels/ops/ring_attention/estimate.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

constexpr OpKind kKind = OpKind::kRingAttentionBackward;

/// With which a launch is expected to end first; of two that are nearly as fast, with fewer.
std::int32_t choose_sum_ctas(RingBackwardPlan plan) {
  constexpr double kClearly = 0.99;
  std::int32_t best = 0;
  double best_seconds = 0;
  for (plan.sum_ctas = 1; plan.sum_ctas <= plan.ring.comm_ctas; plan.sum_ctas *= 2) {
    const double seconds = estimated_seconds(plan);
    if (best > 0 && seconds > kClearly * best_seconds) continue;
    best = plan.sum_ctas;
    best_seconds = seconds;
  }
  return best;
}

}  // namespace

std::int32_t key_slot(const Topology& topology, std::uint32_t writer, std::uint32_t owner) {
  const std::uint32_t nodes = topology.nodes();
  const std::uint32_t distance = (topology.node_of(owner) + nodes - topology.node_of(writer)) % nodes;
  return static_cast<std::int32_t>(distance * topology.ranks_per_node() + topology.local_of(writer));
}

std::int32_t RingBackwardPlan::put_units(std::int32_t distance) const {
  return PutKeyPartialsPlan::head_units(gather(), 0, PutKeyPartialsPlan::rail_peer(gather(), distance));
}
std::int32_t RingBackwardPlan::come_units(std::int32_t distance) const {
  return PutKeyPartialsPlan::head_units(gather(), distance, gather().rank);
}
std::int32_t RingBackwardPlan::most_put_chunks() const {
  std::int32_t most = 0;
  for (std::int32_t distance = 1; distance <= gather().rails(); ++distance)
    most = std::max(most, puts.chunks(gather().heads * put_units(distance)));
  return most;
}

std::uint64_t RingBackwardPlan::wire_bytes() const {
  std::uint64_t units = 0;
  for (std::int32_t distance = 1; distance <= gather().rails(); ++distance)
    units += static_cast<std::uint64_t>(gather().heads) * put_units(distance);
  return ring.wire_bytes() + units * puts.unit_bytes;
}

double RingBackwardPlan::summed_bytes() const {
  return static_cast<double>(wire_bytes() - ring.wire_bytes()) * (gather().near + 2);
}

std::int32_t RingBackwardPlan::all_put_units() const {
  std::int32_t of_head = 0;
  for (std::int32_t distance = 1; distance <= gather().rails(); ++distance) of_head += put_units(distance);
  return gather().heads * of_head;
}

RingBackwardPlan::PutUnit RingBackwardPlan::put_unit(std::int32_t number) const {
  const std::int32_t of_head = all_put_units() / gather().heads, head = number / of_head;
  PutUnit at{.distance = 1};
  std::int32_t left = number % of_head, head_units = put_units(1);
  for (; left >= head_units; head_units = put_units(++at.distance)) left -= head_units;
  at.owner = PutKeyPartialsPlan::rail_peer(gather(), at.distance);
  const std::int32_t in_head = head_units - 1 - left;
  const std::int32_t first = KeyPartialsPlan::units_of(gather(), at.owner, 0);
  at.part = in_head < first ? 0 : 1;
  at.unit = head * KeyPartialsPlan::units_of(gather(), at.owner) + in_head;
  at.packed = PutKeyPartialsPlan::packed(head, in_head, head_units);
  const std::int32_t row = (in_head - at.part * first) * KeyPartialsPlan::kRows;
  at.rows = std::min(gather().part_rows[at.owner][at.part] - row, KeyPartialsPlan::kRows);
  return at;
}

RingBackwardPlan::OwnUnit RingBackwardPlan::own_unit(std::int32_t number) const {
  OwnUnit at{.place = place(number / kTaskUnits)};
  const std::int32_t rank = gather().rank;
  at.row = at.place.tile * kBackwardTileKeys + number % kTaskUnits * KeyPartialsPlan::kRows;
  at.rows = std::clamp(gather().part_rows[rank][at.place.part] - at.row, 0, KeyPartialsPlan::kRows);
  at.unit = KeyPartialsPlan::unit(gather(), rank, at.place.part, at.place.head, at.row);
  at.in_head = at.unit - at.place.head * KeyPartialsPlan::units_of(gather(), rank);
  return at;
}

void RingBackwardPlan::lay_out() {
  partials = KeyPartialsPlan(gather(), static_cast<std::int32_t>(shape().head_dim));
  puts = PutKeyPartialsPlan(gather(), partials);
}

RingBackwardPlan RingBackwardPlan::of(RingGpuPlan ring) {
  RingBackwardPlan plan{.ring = std::move(ring)};
  plan.tasks = RingBackwardTasks(plan.gather(), plan.ring.ctas);
  plan.far_tiles = plan.tasks.far_tiles(plan.gather());
  plan.lay_out();
  return plan;
}

Result<RingBackwardPlan> RingBackwardPlan::make(const AttentionShape& shape, const Topology& topology,
                                                std::uint32_t rank, const Machine& machine,
                                                const RingAttentionOptions& options) {
  auto ring = RingGpuPlan::make(shape, topology, rank, machine, options, kKind);
  if (!ring.ok()) return ring.status();
  RingBackwardPlan plan = of(std::move(*ring));
  if (plan.gather().rails() > 0) plan.sum_ctas = choose_sum_ctas(plan);
  return plan;
}

std::string RingBackwardPlan::signature() const {
  return attention_signature(kKind, shape()) + " comm_ctas=" + std::to_string(ring.comm_ctas);
}

}  // namespace mkernel::kernels

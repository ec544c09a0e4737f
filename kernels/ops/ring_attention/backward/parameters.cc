#include "kernels/ops/ring_attention/backward/parameters.h"

#include "kernels/ops/ring_attention/attention/parameters.h"
#include "kernels/ops/ring_attention/backward/plan.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {
namespace {

AttentionBackwardParts parts_of(const RingBackwardPlan& plan) {
  const auto& rows = plan.gather().part_rows[plan.gather().rank];
  return {{rows[0], rows[1]}};
}

constexpr std::int32_t kParities = 2;

/// Of several nodes.
void describe_puts(const RingBackwardPlan& plan, std::uint64_t* words, RingBackwardNodesParameters& p) {
  const KvGatherPlan& gather = plan.gather();
  p.far_tiles = plan.far_tiles;
  p.sum_ctas = plan.sum_ctas;
  p.puts = plan.puts;
  std::int32_t all = 0;
  for (std::int32_t distance = 1; distance <= gather.rails(); ++distance) {
    p.put_units[distance - 1] = plan.put_units(distance);
    p.come_units[distance - 1] = plan.come_units(distance);
    all += plan.put_units(distance);
  }
  p.all_put_units = all;
  p.chunks = plan.most_put_chunks();
  p.next_put = words;
  p.staged = words + kParities;
}

}  // namespace

AttentionBackwardScratch ring_backward_scratch(const RingBackwardPlan& plan) {
  return attention_backward_scratch(plan.shape(), parts_of(plan));
}

std::uint64_t ring_backward_wire_bytes(const RingBackwardPlan& plan) {
  const std::int32_t rails = plan.gather().rails();
  return 8 * (kParities + std::uint64_t(rails) * plan.most_put_chunks());
}

RingBackwardNodesParameters ring_backward_parameters(const RingBackwardPlan& plan, void* memory, void* wire) {
  RingBackwardNodesParameters p{};
  describe_backward_queries(plan.shape(), parts_of(plan), memory, p);
  p.gather = plan.gather();
  p.comm_ctas = plan.ring.comm_ctas;
  p.preparing = plan.ring.ctas - plan.ring.comm_ctas;
  p.tasks = plan.tasks;
  p.partials = plan.partials;
  if (plan.gather().rails() > 0) describe_puts(plan, static_cast<std::uint64_t*>(wire), p);
  return p;
}

void describe_owners(const Topology& topology, RingBackwardNodesParameters& p) {
  const auto me = static_cast<std::uint32_t>(p.gather.rank);
  for (std::uint32_t owner = 0; owner < topology.world(); ++owner) {
    p.local_of[owner] = static_cast<std::uint8_t>(topology.local_of(owner));
    p.slot_of[owner] = static_cast<std::int8_t>(key_slot(topology, me, owner));
  }
  for (std::uint32_t local = 0; local < topology.ranks_per_node(); ++local)
    p.rank_of_local[local] = static_cast<std::int8_t>(topology.rank_at(topology.node_of(me), local));
}

MatrixView ring_backward_q_view(const RingBackwardPlan& plan, int part, const void* q) {
  const AttentionBackwardParts parts = parts_of(plan);
  // Rows that the tiles of the part before have, and the tensor has not.
  const std::int64_t first = part * parts.tiles(0) * kBackwardTileQueries;
  const std::int64_t moved = first - plan.ring.part_begin(part);
  MatrixView view = attention_rows_view(plan.shape(), q, plan.shape().heads, plan.positions(),
                                        {0, first + parts.queries[part]}, kBackwardTileQueries);
  view.base = static_cast<const std::byte*>(q) - moved * view.columns * 2;
  return view;
}

}  // namespace mkernel::kernels

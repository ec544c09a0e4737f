#include "kernels/ops/ring_attention/ring_backward_parameters.h"

#include "kernels/ops/ring_attention/attention_parameters.h"
#include "kernels/ops/ring_attention/ring_backward_plan.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {
namespace {

AttentionBackwardParts parts_of(const RingBackwardPlan& plan) {
  const auto& rows = plan.gather().part_rows[plan.gather().rank];
  return {{rows[0], rows[1]}};
}

}  // namespace

AttentionBackwardScratch ring_backward_scratch(const RingBackwardPlan& plan) {
  return attention_backward_scratch(plan.shape(), parts_of(plan));
}

RingBackwardParameters ring_backward_parameters(const RingBackwardPlan& plan, void* memory) {
  RingBackwardParameters p{};
  describe_backward_queries(plan.shape(), parts_of(plan), memory, p);
  p.gather = plan.gather();
  p.comm_ctas = plan.ring.comm_ctas;
  p.preparing = plan.ring.ctas - plan.ring.comm_ctas;
  p.tasks = plan.tasks;
  p.partials = plan.partials;
  return p;
}

void describe_owners(const Topology& topology, std::uint32_t rank, RingBackwardParameters& p) {
  describe_ranks(topology, rank, p);
  for (std::uint32_t owner = 0; owner < topology.world(); ++owner)
    p.local_of[owner] = static_cast<std::int8_t>(topology.local_of(owner));
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
MatrixView ring_backward_kv_view(const RingBackwardPlan& plan, const void* kv) {
  MatrixView view = ring_kv_view(plan.ring, kv);
  view.box_rows = kBackwardTileKeys;
  return view;
}
MatrixView ring_backward_slab_view(const RingBackwardPlan& plan, std::int32_t source, const void* slab) {
  MatrixView view = ring_slab_view(plan.ring, source, slab);
  view.box_rows = kBackwardTileKeys;
  return view;
}

}  // namespace mkernel::kernels

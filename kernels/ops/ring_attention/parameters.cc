#include "kernels/ops/ring_attention/parameters.h"

#include <cstddef>
#include <cstdint>

#include "kernels/ops/ring_attention/attention/varlen_parameters.h"
#include "kernels/ops/ring_attention/gpu_plan.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {
namespace {

MatrixView part_view(const RingGpuPlan& plan, int part, const void* base, std::int32_t box_rows) {
  const KvGatherPlan& gather = plan.gather;
  if (plan.packed()) {
    return varlen_tile_view(plan.shape, base, plan.shape.heads, gather.positions(gather.rank),
                            kAttentionTileQueries, box_rows);
  }
  const std::int64_t begin = plan.part_begin(part);
  return attention_rows_view(plan.shape, base, plan.shape.heads, gather.positions(gather.rank),
                             {begin, begin + gather.part_rows[gather.rank][part]}, box_rows);
}

}  // namespace

RingAttentionParameters ring_attention_parameters(const RingGpuPlan& plan, AttentionCounters* counters) {
  RingAttentionParameters p{};
  p.gather = plan.gather;
  p.tasks = plan.tasks;
  p.counters = counters;
  p.scale = attention_scale_log2(plan.shape);
  p.heads = static_cast<std::int32_t>(plan.shape.heads);
  p.causal = plan.shape.causal;
  p.group = static_cast<std::int32_t>(plan.group());
  p.first_tiles = plan.first_tiles;
  p.comm_ctas = plan.comm_ctas;
  return p;
}

void describe_ranks(const Topology& topology, std::uint32_t rank, KvGatherParameters& p) {
  p.local_rank = static_cast<std::int32_t>(topology.local_of(rank));
  for (std::uint32_t step = 1; step < topology.nodes(); ++step) {
    const std::uint32_t node = (topology.node_of(rank) + step) % topology.nodes();
    p.rail[p.rails++] = static_cast<std::int32_t>(topology.rail_peer(rank, node));
  }
}

MatrixView ring_q_view(const RingGpuPlan& plan, int part, const void* q) {
  return part_view(plan, part, q, kAttentionTileQueries);
}
MatrixView ring_out_view(const RingGpuPlan& plan, int part, const void* out) {
  return part_view(plan, part, out, kAttentionTileQueries / 2);
}
MatrixView ring_kv_view(const RingGpuPlan& plan, std::int32_t tile_keys, const void* kv) {
  const std::int64_t positions = plan.gather.positions(plan.gather.rank);
  if (plan.packed())
    return varlen_tile_view(plan.shape, kv, plan.shape.kv_heads, positions, tile_keys, tile_keys);
  return attention_rows_view(plan.shape, kv, plan.shape.kv_heads, positions, {0, positions}, tile_keys);
}
MatrixView ring_push_view(const RingGpuPlan& plan, const void* kv) {
  const std::int64_t positions = plan.gather.positions(plan.gather.rank);
  MatrixView view = attention_rows_view(plan.shape, kv, plan.shape.kv_heads, positions, {0, positions},
                                        plan.gather.piece_rows());
  view.box_columns = static_cast<std::int32_t>(plan.shape.head_dim);
  return view;
}
MatrixView ring_slab_view(const RingGpuPlan& plan, std::int32_t tile_keys, const std::byte* half,
                          std::int32_t source, std::int32_t tensor) {
  const KvGatherPlan& gather = plan.gather;
  const std::int64_t positions = gather.positions(source);
  const std::byte* slab = half + gather.slab_offset(source, tensor);
  if (plan.packed()) {
    // The heads lie one behind the other: rows of a tensor with one head.
    return varlen_tile_view(plan.shape, slab, 1, gather.heads * positions, tile_keys, tile_keys);
  }
  return {.base = slab,
          .element = plan.shape.dtype,
          .rows = positions,
          .columns = plan.shape.head_dim,
          .box_rows = tile_keys,
          .box_columns = 64,
          .first_rows = positions == 0 ? 1 : (gather.heads - 1) * positions + 1};
}

}  // namespace mkernel::kernels

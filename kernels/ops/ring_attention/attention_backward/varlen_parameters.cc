#include "kernels/ops/ring_attention/attention_backward/varlen_parameters.h"

#include "kernels/ops/ring_attention/attention_backward/plan.h"

namespace mkernel::kernels {
namespace {

/// What the queries of packed sequences are described by; those of one length lie as if they were packed.
AttentionShape packed(AttentionShape shape) {
  if (shape.max_sequences > 0) return shape;
  shape.max_sequences = shape.batch;
  shape.sequence *= shape.batch;
  shape.keys *= shape.batch;
  shape.batch = 1;
  return shape;
}

/// All numbers of tiles of queries that there may be, as if they were of one part. `shape`: packed().
AttentionBackwardParts numbered_tiles(const AttentionShape& shape) {
  return {{attention_first_query_tile(shape.sequence, shape.max_sequences) * kBackwardTileQueries, 0}};
}

}  // namespace

std::int64_t varlen_backward_bytes(const AttentionBackwardPlan& plan) {
  const AttentionShape shape = packed(plan.shape);
  return attention_backward_scratch(shape, numbered_tiles(shape)).bytes;
}

VarlenBackwardParameters varlen_backward_parameters(const AttentionBackwardPlan& plan, void* memory,
                                                    VarlenScratch<AttentionBackwardSlot>* scratch) {
  VarlenBackwardParameters p{};
  const AttentionShape shape = packed(plan.shape);
  describe_backward_queries(shape, numbered_tiles(shape), memory, p);
  p.queries = static_cast<std::int32_t>(shape.sequence);
  p.lengths = plan.lengths({});
  p.scratch = scratch;
  p.kv_heads = static_cast<std::int32_t>(shape.kv_heads);
  p.window = plan.window();
  return p;
}

MatrixView varlen_backward_q_view(const AttentionBackwardPlan& plan, const void* q) {
  return varlen_tile_view(plan.shape, q, plan.shape.heads, plan.shape.sequence, kBackwardTileQueries,
                          kBackwardTileQueries);
}
MatrixView varlen_backward_k_view(const AttentionBackwardPlan& plan, const void* k) {
  return varlen_tile_view(plan.shape, k, plan.shape.kv_heads, plan.shape.keys, kBackwardTileKeys,
                          kBackwardTileKeys);
}
MatrixView varlen_backward_d_k_view(const AttentionBackwardPlan& plan, const void* d_k) {
  return varlen_tile_view(plan.shape, d_k, plan.shape.kv_heads, plan.shape.keys, kBackwardTileKeys,
                          kBackwardTileKeys / 2);
}

}  // namespace mkernel::kernels

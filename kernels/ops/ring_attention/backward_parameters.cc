#include "kernels/ops/ring_attention/backward_parameters.h"

#include "kernels/ops/ring_attention/attention_parameters.h"
#include "kernels/ops/ring_attention/backward_plan.h"
#include "kernels/ops/ring_attention/shape.h"

namespace mkernel::kernels {
namespace {

/// Of the queries of all heads.
std::int64_t all_tiles(const AttentionShape& shape) {
  return shape.batch * shape.heads * ((shape.sequence + kBackwardTileQueries - 1) / kBackwardTileQueries);
}

MatrixView query_view(const AttentionShape& shape, const void* q) {
  return attention_rows_view(shape, q, shape.heads, shape.sequence, {0, shape.sequence},
                             kBackwardTileQueries);
}
MatrixView key_view(const AttentionShape& shape, const void* k, std::int32_t box_rows) {
  return attention_rows_view(shape, k, shape.kv_heads, shape.keys, {0, shape.keys}, box_rows);
}

}  // namespace

AttentionBackwardScratch attention_backward_scratch(const AttentionBackwardPlan& plan) {
  constexpr std::int64_t kWord = sizeof(std::uint64_t), kAlign = 128;
  const AttentionShape& shape = plan.shape;
  const std::int64_t tiles = all_tiles(shape), units = shape.head_dim / 64;
  AttentionBackwardScratch at{};
  const auto place = [&at](std::int64_t bytes) {
    const std::int64_t begin = at.bytes;
    at.bytes += (bytes + kAlign - 1) / kAlign * kAlign;
    return begin;
  };
  place(sizeof(AttentionBackwardCounters));
  at.prepared = place(shape.batch * shape.heads * kWord);
  at.added = place(tiles * units * kWord);
  at.rows = place(tiles * static_cast<std::int64_t>(sizeof(AttentionBackwardRows)));
  at.sums = place(tiles * kBackwardTileQueries * shape.head_dim * static_cast<std::int64_t>(sizeof(float)));
  return at;
}

AttentionBackwardParameters attention_backward_parameters(const AttentionBackwardPlan& plan, void* memory) {
  const AttentionShape& shape = plan.shape;
  const AttentionBackwardScratch at = attention_backward_scratch(plan);
  const auto narrow = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  auto* const base = static_cast<std::byte*>(memory);
  AttentionBackwardParameters p{};
  p.tasks = AttentionBackwardTasks(narrow(shape.batch), narrow(shape.heads), narrow(shape.kv_heads),
                                   narrow(shape.sequence), narrow(shape.keys), narrow(shape.head_dim),
                                   shape.causal);
  p.counters = reinterpret_cast<AttentionBackwardCounters*>(base);
  p.prepared = reinterpret_cast<std::uint64_t*>(base + at.prepared);
  p.added = reinterpret_cast<std::uint64_t*>(base + at.added);
  p.rows = reinterpret_cast<AttentionBackwardRows*>(base + at.rows);
  p.sums = reinterpret_cast<float*>(base + at.sums);
  p.scale = static_cast<float>(attention_scale(shape));
  p.scale_log2 = attention_scale_log2(shape);
  p.queries = narrow(shape.sequence);
  p.keys = narrow(shape.keys);
  p.all_heads = narrow(shape.batch * shape.heads);
  p.row_bytes = narrow(shape.heads * shape.head_dim * static_cast<std::int64_t>(element_bytes(shape.dtype)));
  p.heads = narrow(shape.heads);
  p.query_tiles = p.tasks.query_tiles();
  p.group = narrow(plan.group());
  return p;
}

MatrixView attention_backward_q_view(const AttentionBackwardPlan& plan, const void* q) {
  return query_view(plan.shape, q);
}
MatrixView attention_backward_k_view(const AttentionBackwardPlan& plan, const void* k) {
  return key_view(plan.shape, k, kBackwardTileKeys);
}
MatrixView attention_backward_d_k_view(const AttentionBackwardPlan& plan, const void* d_k) {
  return key_view(plan.shape, d_k, kBackwardTileKeys / 2);
}

}  // namespace mkernel::kernels

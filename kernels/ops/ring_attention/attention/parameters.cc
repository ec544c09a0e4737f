#include "kernels/ops/ring_attention/attention/parameters.h"

#include <numbers>

#include "kernels/ops/ring_attention/attention/plan.h"
#include "kernels/ops/ring_attention/shape.h"

namespace mkernel::kernels {

MatrixView attention_rows_view(const AttentionShape& shape, const void* base, std::int64_t heads,
                               std::int64_t positions, Range rows, std::int32_t box_rows) {
  return {.base = base,
          .element = shape.dtype,
          .rows = rows.size(),
          .columns = heads * shape.head_dim,
          .box_rows = box_rows,
          .box_columns = 64,
          .first_rows = (shape.batch - 1) * positions + rows.begin + 1};
}

float attention_scale_log2(const AttentionShape& shape) {
  return static_cast<float>(attention_scale(shape) * std::numbers::log2e);
}

AttentionParameters attention_parameters(const AttentionPlan& plan, AttentionCounters* counters) {
  const AttentionShape& shape = plan.shape;
  AttentionParameters p{};
  p.tasks = plan.tasks();
  p.counters = counters;
  p.scale = attention_scale_log2(shape);
  p.heads = static_cast<std::int32_t>(shape.heads);
  p.queries = static_cast<std::int32_t>(shape.sequence);
  p.keys = static_cast<std::int32_t>(shape.keys);
  p.causal = shape.causal;
  p.group = static_cast<std::int32_t>(plan.group());
  return p;
}

MatrixView attention_q_view(const AttentionPlan& plan, const void* q) {
  const std::int64_t queries = plan.shape.sequence;
  return attention_rows_view(plan.shape, q, plan.shape.heads, queries, {0, queries}, kAttentionTileQueries);
}
MatrixView attention_kv_view(const AttentionPlan& plan, const void* kv) {
  const AttentionShape& shape = plan.shape;
  return attention_rows_view(shape, kv, shape.kv_heads, shape.keys, {0, shape.keys}, plan.tile_keys());
}
MatrixView attention_out_view(const AttentionPlan& plan, const void* out) {
  const std::int64_t queries = plan.shape.sequence;
  return attention_rows_view(plan.shape, out, plan.shape.heads, queries, {0, queries},
                             kAttentionTileQueries / 2);
}

}  // namespace mkernel::kernels

#include "kernels/ops/ring_attention/attention_parameters.h"

#include <numbers>

#include "kernels/ops/ring_attention/attention_plan.h"
#include "kernels/ops/ring_attention/shape.h"

namespace mkernel::kernels {
namespace {

/// Rows behind the end of a sequence are outside, though memory may have another sequence there.
MatrixView view_of(const AttentionShape& shape, const void* base, std::int64_t positions, std::int64_t heads,
                   std::int32_t box_rows) {
  return {.base = base,
          .element = shape.dtype,
          .rows = positions,
          .columns = heads * shape.head_dim,
          .box_rows = box_rows,
          .box_columns = 64,
          .first_rows = (shape.batch - 1) * positions + 1};
}

}  // namespace

AttentionParameters attention_parameters(const AttentionPlan& plan, AttentionCounters* counters) {
  const AttentionShape& shape = plan.shape;
  const auto heads = static_cast<std::int32_t>(shape.heads);
  const auto queries = static_cast<std::int32_t>(shape.sequence);
  AttentionParameters p{};
  p.tasks =
      AttentionTasks(static_cast<std::int32_t>(shape.batch), heads, static_cast<std::int32_t>(shape.kv_heads),
                     queries, 2 * shape.keys * shape.head_dim * 2);
  p.counters = counters;
  p.scale = static_cast<float>(attention_scale(shape) * std::numbers::log2e);
  p.heads = heads;
  p.queries = queries;
  p.keys = static_cast<std::int32_t>(shape.keys);
  p.group = static_cast<std::int32_t>(plan.group());
  return p;
}

MatrixView attention_q_view(const AttentionPlan& plan, const void* q) {
  return view_of(plan.shape, q, plan.shape.sequence, plan.shape.heads, kAttentionTileQueries);
}
MatrixView attention_kv_view(const AttentionPlan& plan, const void* kv) {
  const AttentionShape& shape = plan.shape;
  const std::int32_t rows = attention_tile_keys(static_cast<std::int32_t>(shape.head_dim), shape.causal);
  return view_of(shape, kv, shape.keys, shape.kv_heads, rows);
}
MatrixView attention_out_view(const AttentionPlan& plan, const void* out) {
  return view_of(plan.shape, out, plan.shape.sequence, plan.shape.heads, kAttentionTileQueries / 2);
}

}  // namespace mkernel::kernels

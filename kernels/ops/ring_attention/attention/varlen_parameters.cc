#include "kernels/ops/ring_attention/attention/varlen_parameters.h"

#include "kernels/ops/ring_attention/attention/parameters.h"
#include "kernels/ops/ring_attention/attention/plan.h"

namespace mkernel::kernels {

MatrixView varlen_tile_view(const AttentionShape& shape, const void* tensor, std::int64_t heads,
                            std::int64_t rows, std::int32_t height, std::int32_t box_rows) {
  MatrixView view = attention_rows_view(shape, tensor, heads, rows, {0, height}, box_rows);
  // So far before the tensor that row `height` of the map is that of the third coordinate; what lies there is
  // never touched.
  view.base = static_cast<const std::byte*>(tensor) - height * view.columns * 2;
  view.first_rows = shape.batch * rows + 1;
  return view;
}

VarlenParameters varlen_parameters(const AttentionPlan& plan, VarlenScratch<AttentionSlot>* scratch) {
  const AttentionShape& shape = plan.shape;
  VarlenParameters p{};
  p.lengths = plan.lengths({});
  p.window = plan.window();
  p.scratch = scratch;
  p.scale = attention_scale_log2(shape);
  p.heads = static_cast<std::int32_t>(shape.heads);
  p.group = static_cast<std::int32_t>(plan.group());
  p.lse_sequence = plan.lse_at({.query_first = 1}, 0);
  return p;
}

MatrixView varlen_q_view(const AttentionPlan& plan, const void* q) {
  return varlen_tile_view(plan.shape, q, plan.shape.heads, plan.shape.sequence, kAttentionTileQueries,
                          kAttentionTileQueries);
}
MatrixView varlen_kv_view(const AttentionPlan& plan, const void* kv) {
  const std::int32_t rows = plan.tile_keys();
  return varlen_tile_view(plan.shape, kv, plan.shape.kv_heads, plan.shape.keys, rows, rows);
}
MatrixView varlen_out_view(const AttentionPlan& plan, const void* out) {
  return varlen_tile_view(plan.shape, out, plan.shape.heads, plan.shape.sequence, kAttentionTileQueries,
                          kAttentionTileQueries / 2);
}

}  // namespace mkernel::kernels

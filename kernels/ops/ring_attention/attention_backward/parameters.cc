#include "kernels/ops/ring_attention/attention_backward/parameters.h"

#include "kernels/ops/ring_attention/attention/parameters.h"
#include "kernels/ops/ring_attention/attention_backward/plan.h"

namespace mkernel::kernels {
namespace {

MatrixView query_view(const AttentionShape& shape, const void* q) {
  return attention_rows_view(shape, q, shape.heads, shape.sequence, {0, shape.sequence},
                             kBackwardTileQueries);
}
MatrixView key_view(const AttentionShape& shape, const void* k, std::int32_t box_rows) {
  return attention_rows_view(shape, k, shape.kv_heads, shape.keys, {0, shape.keys}, box_rows);
}

}  // namespace

AttentionBackwardParts attention_backward_parts(const AttentionBackwardPlan& plan) {
  return {{plan.shape.sequence, 0}};
}

AttentionBackwardParameters attention_backward_parameters(const AttentionBackwardPlan& plan, void* memory) {
  AttentionBackwardParameters p{};
  describe_backward_queries(plan.shape, attention_backward_parts(plan), memory, p);
  p.tasks = plan.tasks();
  p.keys = static_cast<std::int32_t>(plan.shape.keys);
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

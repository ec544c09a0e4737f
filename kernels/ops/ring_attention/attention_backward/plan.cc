#include "kernels/ops/ring_attention/attention_backward/plan.h"

#include "kernels/ops/ring_attention/attention_slots.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

constexpr OpKind kKind = OpKind::kAttentionBackward;

}  // namespace

Status check_attention_backward_operands(OpKind kind, const AttentionBackwardArguments& arguments,
                                         std::int64_t positions) {
  for (const auto& [data, name] : attention_backward_operands(arguments)) {
    if (data != nullptr || positions == 0) continue;
    return {StatusCode::kInvalidArgument,
            std::string(name_of(kind)) + ": " + name + " is null, but the backward pass needs every operand"};
  }
  return {};
}

Result<AttentionBackwardPlan> AttentionBackwardPlan::make(AttentionShape shape) {
  MK_RETURN_IF_ERROR(check_attention_shape(kKind, shape));
  if (shape.keys == 0) shape.keys = shape.sequence;
  MK_RETURN_IF_ERROR(check_attention_counts(kKind, shape));
  return AttentionBackwardPlan{shape};
}

Status AttentionBackwardPlan::check_on_gpu() const {
  MK_RETURN_IF_ERROR(check_attention_on_gpu(kKind, shape));
  return has_attention_window(shape) ? check_attention_window_on_gpu(kKind, shape) : Status();
}

std::string AttentionBackwardPlan::signature() const {
  return attention_signature(kKind, shape);
}

AttentionWindow AttentionBackwardPlan::window() const {
  if (!has_attention_window(shape)) return {};
  const AttentionWindow wanted = attention_window(shape);
  const auto limit = [](std::int32_t side, std::int64_t rows) {
    return side == AttentionWindow::kAll || side >= rows ? static_cast<std::int32_t>(rows - 1) : side;
  };
  return {limit(wanted.left, shape.keys), limit(wanted.right, shape.sequence)};
}

AttentionBackwardTaskList AttentionBackwardPlan::list() const {
  return {static_cast<std::int32_t>(shape.kv_heads), static_cast<std::int32_t>(group()),
          static_cast<std::int32_t>(shape.head_dim), shape.causal, window()};
}

std::vector<AttentionBackwardSlot> AttentionBackwardPlan::slots(const AttentionLengths& lengths) const {
  return attention_slots(list(), lengths);
}

AttentionBackwardTasks AttentionBackwardPlan::tasks(std::int32_t ctas) const {
  const auto narrow = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  return {narrow(shape.batch), narrow(shape.heads),    narrow(shape.kv_heads), narrow(shape.sequence),
          narrow(shape.keys),  narrow(shape.head_dim), shape.causal,           ctas};
}

Status AttentionBackwardPlan::check(const AttentionBackwardArguments& arguments) const {
  MK_RETURN_IF_ERROR(check_attention_backward_operands(kKind, arguments, shape.sequence));
  return check_attention_lengths(kKind, shape, arguments.cu_seqlens_q, arguments.cu_seqlens_k);
}

Status AttentionBackwardPlan::refuse(const BadLength& bad) const {
  return refuse_attention_length(kKind, shape, bad);
}

AttentionLengths AttentionBackwardPlan::lengths(const AttentionBackwardArguments& arguments) const {
  return attention_lengths(shape, arguments.cu_seqlens_q, arguments.cu_seqlens_k);
}

}  // namespace mkernel::kernels

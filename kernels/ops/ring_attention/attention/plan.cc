#include "kernels/ops/ring_attention/attention/plan.h"

#include <algorithm>
#include <cstdint>

#include "kernels/ops/ring_attention/attention_slots.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

constexpr OpKind kAlone = OpKind::kAttention;

}  // namespace

Result<AttentionPlan> AttentionPlan::make(AttentionShape shape) {
  MK_RETURN_IF_ERROR(check_attention_shape(kAlone, shape));
  if (shape.keys == 0) shape.keys = shape.sequence;
  MK_RETURN_IF_ERROR(check_attention_counts(kAlone, shape));
  return AttentionPlan{shape};
}

Status AttentionPlan::check_on_gpu() const {
  MK_RETURN_IF_ERROR(check_attention_on_gpu(kAlone, shape));
  return plain() ? Status() : check_attention_window_on_gpu(kAlone, shape);
}

std::string AttentionPlan::signature() const {
  return attention_signature(kAlone, shape);
}

std::int32_t AttentionPlan::tile_keys() const {
  return attention_tile_keys(static_cast<std::int32_t>(shape.head_dim), masked(),
                             shape.keys / std::max<std::int64_t>(shape.max_sequences, 1));
}

AttentionTasks AttentionPlan::tasks() const {
  return AttentionTasks(static_cast<std::int32_t>(shape.batch), static_cast<std::int32_t>(shape.heads),
                        static_cast<std::int32_t>(shape.kv_heads),
                        attention_query_tiles(static_cast<std::int32_t>(shape.sequence)),
                        2 * shape.keys * shape.head_dim * 2);
}

Status AttentionPlan::check(const AttentionArguments& arguments) const {
  MK_RETURN_IF_ERROR(check_attention_operands(kAlone, arguments, shape.sequence, shape.keys));
  return check_attention_lengths(kAlone, shape, arguments.cu_seqlens_q, arguments.cu_seqlens_k);
}

Status AttentionPlan::refuse(const BadLength& bad) const {
  return refuse_attention_length(kAlone, shape, bad);
}

AttentionLengths AttentionPlan::lengths(const AttentionArguments& arguments) const {
  return attention_lengths(shape, arguments.cu_seqlens_q, arguments.cu_seqlens_k);
}

std::vector<AttentionSlot> AttentionPlan::slots(const AttentionLengths& lengths) const {
  const AttentionTaskList list{static_cast<std::int32_t>(shape.heads), static_cast<std::int32_t>(group()),
                               static_cast<std::int32_t>(2 * 2 * shape.head_dim)};
  return attention_slots(list, lengths);
}

}  // namespace mkernel::kernels

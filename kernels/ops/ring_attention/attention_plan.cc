#include "kernels/ops/ring_attention/attention_plan.h"

#include "kernels/ops/ring_attention/shape.h"

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
  return check_attention_on_gpu(kAlone, shape);
}

std::string AttentionPlan::signature() const {
  return attention_signature(kAlone, shape);
}

AttentionTasks AttentionPlan::tasks() const {
  return AttentionTasks(static_cast<std::int32_t>(shape.batch), static_cast<std::int32_t>(shape.heads),
                        static_cast<std::int32_t>(shape.kv_heads),
                        attention_query_tiles(static_cast<std::int32_t>(shape.sequence)),
                        2 * shape.keys * shape.head_dim * 2);
}

Status AttentionPlan::check(const AttentionArguments& arguments) const {
  return check_attention_operands(kAlone, arguments, shape.sequence, shape.keys);
}

}  // namespace mkernel::kernels

#include "kernels/ops/ring_attention/attention_plan.h"

#include <tuple>

#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/attention_tasks.h"
#include "kernels/plan/cuts.h"

namespace mkernel::kernels {
namespace {

constexpr OpKind kKind = OpKind::kAttention;

Status refused(const std::string& field, std::int64_t value, const std::string& limit) {
  return {StatusCode::kInvalidArgument,
          "attention: " + field + " = " + std::to_string(value) + ", but it must be " + limit};
}

}  // namespace

Result<AttentionPlan> AttentionPlan::make(AttentionShape shape) {
  MK_RETURN_IF_ERROR(check_attention_shape(kKind, shape));
  if (shape.keys == 0) shape.keys = shape.sequence;
  // Rows, columns and tasks are counted in 32 bits, with room for a tile that ends behind the last row.
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  for (const auto& [field, left, right] : {std::tuple{"batch * sequence", shape.batch, shape.sequence},
                                           {"batch * keys", shape.batch, shape.keys},
                                           {"heads * head_dim", shape.heads, shape.head_dim},
                                           {"batch * heads", shape.batch, shape.heads},
                                           {"batch * heads * tiles of 128 queries", shape.batch * shape.heads,
                                            ceil_div(shape.sequence, std::int64_t{kAttentionTileQueries})}}) {
    if (left > kMost / right) return refused(field, left * right, "at most " + std::to_string(kMost));
  }
  return AttentionPlan{shape};
}

Status AttentionPlan::check_on_gpu() const {
  if (shape.head_dim == 64 || shape.head_dim == 128) return {};
  return refused("head_dim", shape.head_dim, "64 or 128 on the cuda executor");
}

std::string AttentionPlan::signature() const {
  return attention_signature(kKind, shape);
}

Status AttentionPlan::check(const AttentionArguments& arguments) const {
  return check_attention_operands(kKind, arguments, shape.sequence, shape.keys);
}

}  // namespace mkernel::kernels

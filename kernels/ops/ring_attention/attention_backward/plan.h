// Plan of the backward pass of attention of a rank alone: what it refuses, and how it is called.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/ring_attention/attention/plan.h"
#include "kernels/plan/attention_backward_sequences.h"
#include "kernels/plan/attention_backward_tasks.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// All operands of a launch, by name.
inline std::array<std::pair<const void*, const char*>, 9> attention_backward_operands(
    const AttentionBackwardArguments& arguments) {
  return {{{arguments.q, "q"},
           {arguments.k, "k"},
           {arguments.v, "v"},
           {arguments.out, "out"},
           {arguments.d_out, "d_out"},
           {arguments.lse, "lse"},
           {arguments.d_q, "d_q"},
           {arguments.d_k, "d_k"},
           {arguments.d_v, "d_v"}}};
}

/// kInvalidArgument naming an operand that is null, though this rank holds so many positions.
Status check_attention_backward_operands(OpKind kind, const AttentionBackwardArguments& arguments,
                                         std::int64_t positions);

/// Pure.
struct AttentionBackwardPlan {
  AttentionShape shape;  ///< with `keys` filled in

  /// kInvalidArgument naming field, value and limit.
  static Result<AttentionBackwardPlan> make(AttentionShape shape);
  /// Likewise, for what the kernel of the cuda executor does not have.
  Status check_on_gpu() const;

  std::string signature() const;
  /// kInvalidArgument for an operand that is null, and for lengths where none are wanted.
  Status check(const AttentionBackwardArguments& arguments) const;
  /// OK without a bad length; else kInvalidArgument.
  Status refuse(const BadLength& bad) const;

  AttentionLengths lengths(const AttentionBackwardArguments& arguments) const;

  /// All sequences have one length, and no window.
  bool plain() const { return shape.max_sequences == 0 && !has_attention_window(shape); }
  /// As that of AttentionBackwardTaskList.
  AttentionWindow window() const;

  /// Query heads that share the keys and values of one head.
  std::int64_t group() const { return shape.heads / shape.kv_heads; }
  /// The tasks of a plan that is not plain, and that check_on_gpu() takes; `lengths`: good ones, and slots()
  /// has a slot behind the last.
  AttentionBackwardTaskList list() const;
  std::vector<AttentionBackwardSlot> slots(const AttentionLengths& lengths) const;
  /// Of a plan that check_on_gpu() takes, and that is plain.
  AttentionBackwardTasks tasks(std::int32_t ctas = 0) const;
};

}  // namespace mkernel::kernels

// Plan of attention of a rank alone: what it refuses, and how it is called.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/plan/attention_tasks.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Overrides of the cuda executor. 0 or empty = by device.
struct AttentionOptions {
  std::int32_t sms = 0;  ///< multiprocessors at most
  std::string machine;   ///< as GemmPlanOptions' of this name
};

/// Pure.
struct AttentionPlan {
  AttentionShape shape;  ///< with `keys` filled in

  /// kInvalidArgument naming field, value and limit.
  static Result<AttentionPlan> make(AttentionShape shape);
  /// Likewise, for what the kernel of the cuda executor does not have.
  Status check_on_gpu() const;

  std::string signature() const;
  /// kInvalidArgument for an operand that is null.
  Status check(const AttentionArguments& arguments) const;

  /// Query heads that share the keys and values of one head.
  std::int64_t group() const { return shape.heads / shape.kv_heads; }
  /// In the order in which the cuda executor takes them.
  AttentionTasks tasks() const;
};

}  // namespace mkernel::kernels

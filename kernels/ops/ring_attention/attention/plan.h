// Plan of attention of a rank alone: what it refuses, and how it is called.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/attention_sequences.h"
#include "kernels/plan/attention_tasks.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Overrides of the cuda executor. 0 or empty = by device.
struct AttentionOptions {
  std::int32_t sms = 0;  ///< multiprocessors at most
  std::string machine;   ///< as GemmPlanOptions' of this name
  /// Of the backward pass, for gpu_attention_backward_test, which times both: AttentionBackwardTasks with
  /// `ctas`. The gradients of keys have other bits then on other numbers of multiprocessors.
  bool later_keys_upwards = false;
};

/// Pure.
struct AttentionPlan {
  AttentionShape shape;  ///< with `keys` filled in

  /// kInvalidArgument naming field, value and limit.
  static Result<AttentionPlan> make(AttentionShape shape);
  /// Likewise, for what the kernel of the cuda executor does not have.
  Status check_on_gpu() const;

  std::string signature() const;
  /// kInvalidArgument for an operand that is null, and for lengths where none are wanted.
  Status check(const AttentionArguments& arguments) const;
  /// OK without a bad length; else kInvalidArgument.
  Status refuse(const BadLength& bad) const;

  /// All sequences have one length, and their queries see all keys, or all before their own position.
  bool plain() const { return shape.max_sequences == 0 && !has_attention_window(shape); }
  /// Some query does not see all keys of its sequence: the kernel takes smaller tiles of keys then.
  bool masked() const { return shape.causal || has_attention_window(shape); }
  AttentionWindow window() const { return attention_window(shape); }
  AttentionLengths lengths(const AttentionArguments& arguments) const;
  /// The list of tasks of lengths that are good, with a slot behind the last one.
  std::vector<AttentionSlot> slots(const AttentionLengths& lengths) const;
  /// The index in lse of the first query of a sequence and head.
  std::int64_t lse_at(const AttentionSequence& sequence, std::int64_t head) const {
    return attention_lse_at(shape, sequence, head);
  }

  /// Of a tile, on the cuda executor. Of packed sequences the longest are as long as all are on average.
  std::int32_t tile_keys() const;
  /// Query heads that share the keys and values of one head.
  std::int64_t group() const { return shape.heads / shape.kv_heads; }
  /// In the order in which the cuda executor takes them.
  AttentionTasks tasks() const;
};

}  // namespace mkernel::kernels

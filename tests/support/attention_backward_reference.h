// The gradients of attention in fp64, written from the definition and sharing no code with the operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mkernel/ops.h"
#include "tests/support/attention_reference.h"

namespace mkernel::test {

/// What the backward pass is given: random operands, and what attention makes of them, rounded as it rounds.
struct AttentionBackwardTensors {
  AttentionTensors forward;
  std::vector<std::uint16_t> out, d_out;
  std::vector<float> lse;
};
/// With outputs and log-sum-exps that are poison yet: those that an operation gives are as good, and quicker.
AttentionBackwardTensors random_attention_gradients(const AttentionShape& shape, std::uint64_t seed,
                                                    float scale = 1.0F);
/// Fills in those of the reference.
void attend_for_backward(const AttentionShape& shape, AttentionBackwardTensors& tensors);
/// With those of the reference.
AttentionBackwardTensors random_attention_backward(const AttentionShape& shape, std::uint64_t seed,
                                                   float scale = 1.0F);

/// What it gives: as q, k and v.
struct AttentionGradients {
  std::vector<std::uint16_t> d_q, d_k, d_v;

  bool operator==(const AttentionGradients&) const = default;
};
AttentionGradients poisoned_gradients(const AttentionShape& shape);

/// The arguments of a launch with tensors of this process.
AttentionBackwardArguments backward_arguments(const AttentionBackwardTensors& tensors,
                                              AttentionGradients& gradients);

/// Gradients that are farther from the reference than fp32 arithmetic and `weights` explain: weights and
/// gradients of scores are rounded alike. Looks at every `step`-th query, and at every `step`-th key, of all
/// heads and batch entries, one after the other.
std::size_t wrong_gradients(const AttentionShape& shape, const AttentionBackwardTensors& tensors,
                            const AttentionGradients& gradients, Weights weights, std::int64_t step = 1);

/// What `rank` of `world` holds of whole tensors, and room for what ring attention's backward pass gives it.
AttentionBackwardTensors backward_of_rank(const AttentionShape& shape, const AttentionBackwardTensors& whole,
                                          std::int64_t world, std::int64_t rank);
AttentionGradients poisoned_gradients_of_rank(const AttentionShape& shape, std::int64_t world,
                                              std::int64_t rank);
/// As wrong_gradients(), of all ranks. What each of several ranks gives of the gradients of keys and values
/// is rounded, so many times on its way to the sum.
std::size_t wrong_gradients_of_ranks(const AttentionShape& shape, const AttentionBackwardTensors& whole,
                                     const std::vector<AttentionGradients>& by_rank, Weights weights,
                                     int roundings = 1);

}  // namespace mkernel::test

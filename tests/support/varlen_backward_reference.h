// The gradients of attention of sequences of different lengths in fp64: each sequence is cut out and compared
// with the reference of one sequence.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mkernel/ops.h"
#include "tests/support/attention_backward_reference.h"
#include "tests/support/varlen_reference.h"

namespace mkernel::test {

/// Random operands of the backward pass, and what attention makes of them with these lengths, rounded as it
/// rounds.
AttentionBackwardTensors random_varlen_backward(const AttentionShape& shape, const SequenceLengths& lengths,
                                                std::uint64_t seed, float scale = 1.0F);

/// As wrong_gradients() of every sequence. Gradients of queries without keys, and of keys without queries,
/// are zeros; rows behind the last sequence stay poison.
std::size_t wrong_varlen_gradients(const AttentionShape& shape, const SequenceLengths& lengths,
                                   const AttentionBackwardTensors& tensors,
                                   const AttentionGradients& gradients, Weights weights);

}  // namespace mkernel::test

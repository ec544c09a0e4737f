// The mixture-of-experts layer in fp64, written from the definition and sharing no code with the operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mkernel/ops.h"
#include "tests/support/attention_reference.h"

namespace mkernel::test {

/// All experts' weights: w1 [experts, hidden, n or 2 * intermediate], w2 [experts, intermediate, n]. And
/// those of the shared expert: [hidden, 2 * shared_intermediate], [shared_intermediate, n].
struct MoeWeights {
  std::vector<std::uint16_t> w1, w2, shared_w1, shared_w2;
};

/// One rank's input of one launch.
struct MoeInput {
  std::int64_t tokens = 0;
  std::vector<std::uint16_t> x;       // [tokens, hidden]
  std::vector<std::int32_t> topk;     // [tokens, topk]
  std::vector<float> weights;         // [tokens, topk]
  std::vector<float> shared_weights;  // [tokens]; empty: all are 1
};

/// Expected output of one token: n values.
std::vector<Expected> moe_row(const MoeShape& shape, const MoeWeights& weights, const MoeInput& input,
                              std::int64_t token);
/// How many elements of `y`, the output of `input`'s tokens, are off by more than they may be; NaN is wrong.
/// Elements beyond [tokens, n] are not looked at.
std::size_t wrong_elements(const MoeShape& shape, const MoeWeights& weights, const MoeInput& input,
                           const std::vector<std::uint16_t>& y);

}  // namespace mkernel::test

// Attention in fp64, written from the definition and sharing no code with the operation.
#pragma once

#include <cstdint>
#include <vector>

#include "mkernel/ops.h"

namespace mkernel::test {

/// Whole tensors, [batch, sequence, heads or kv_heads, head_dim], in the io type.
struct AttentionTensors {
  std::vector<std::uint16_t> q, k, v;
};

/// One output value and how far a correct fp32 computation may be from it, the final rounding included.
struct Expected {
  double value = 0;
  double tolerance = 0;
};

/// Expected output of one query position and head: head_dim values.
std::vector<Expected> attention_row(const AttentionShape& shape, const AttentionTensors& tensors,
                                    std::int64_t batch, std::int64_t position, std::int64_t head);

/// Positions that `rank` holds, in the order of its rows (ops.h, AttentionShape).
std::vector<std::int64_t> attention_positions(const AttentionShape& shape, std::int64_t world,
                                              std::int64_t rank);

}  // namespace mkernel::test

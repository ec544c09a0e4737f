// Attention in fp64, written from the definition and sharing no code with the operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "mkernel/ops.h"
#include "tests/support/rounding.h"

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

bool is_near(double value, const Expected& expected);

struct ExpectedRow {
  std::vector<Expected> out;  ///< head_dim values
  Expected lse;               ///< the logarithm of the sum of exponentials
};

/// What rounds the weights before they meet the values: fp32 arithmetic alone, or tensor cores too, which
/// take them in the io type.
enum class Weights { kFp32, kRounded };

/// Of one query position and head. The last query sees what the last key's position does. A sliding window of
/// the shape counts; sequences that are packed are those of varlen_reference.h.
ExpectedRow attention_row(const AttentionShape& shape, const AttentionTensors& tensors, std::int64_t batch,
                          std::int64_t position, std::int64_t head, Weights weights = Weights::kFp32);

/// Inputs of attention, and outputs of a rank alone: out as q, lse [batch, heads, sequence].
AttentionTensors random_attention(const AttentionShape& shape, std::uint64_t seed, float scale = 1.0F);
std::vector<std::uint16_t> poisoned_output(const AttentionShape& shape);
std::vector<float> poisoned_lse(const AttentionShape& shape);
/// Outputs, log-sum-exps among them unless there are none, that are farther from the reference than `weights`
/// explain. Looks at every `step`-th query of all heads and batch entries, one after the other.
std::size_t wrong_attention(const AttentionShape& shape, const AttentionTensors& tensors,
                            const std::vector<std::uint16_t>& out, const std::vector<float>& lse,
                            Weights weights, std::int64_t step = 1);

/// check(shape) for every size of heads that the GPU takes, and every mask.
template <class Check>
void for_every_mask(AttentionShape shape, const Check& check) {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const bool causal : {false, true}) {
      shape.head_dim = head_dim;
      shape.causal = causal;
      check(shape);
    }
  }
}

/// Likewise, and for every type.
template <class Check>
void for_every_attention(AttentionShape shape, const Check& check) {
  for (const DataType type : {DataType::kBf16, DataType::kF16}) {
#if defined(MKERNEL_SANITIZED)
    if (type != DataType::kBf16) continue;  // the same code but for conversions, and slow
#endif
    shape.dtype = type;
    for_every_mask(shape, check);
  }
}

/// Positions that `rank` holds, in the order of its rows (ops.h, AttentionShape).
std::vector<std::int64_t> attention_positions(const AttentionShape& shape, std::int64_t world,
                                              std::int64_t rank);
/// What `rank` holds of a whole tensor with so many heads, as ring attention takes it.
std::vector<std::uint16_t> rows_of_rank(const AttentionShape& shape, const std::vector<std::uint16_t>& whole,
                                        std::int64_t heads, std::int64_t world, std::int64_t rank);
/// As wrong_attention(), of what ring attention gave `rank`. `tensors`: whole ones.
std::size_t wrong_attention_of_rank(const AttentionShape& shape, const AttentionTensors& tensors,
                                    std::int64_t world, std::int64_t rank,
                                    const std::vector<std::uint16_t>& out, const std::vector<float>& lse,
                                    Weights weights, std::int64_t step = 1);

/// Calls run(shape) for a shape with each of these numbers of `keys`, few queries and many, both masks and
/// sizes of heads.
template <class Run>
void for_every_border(std::initializer_list<std::int64_t> keys, const Run& run) {
  for (const std::int64_t count : keys) {
    for (const bool causal : {false, true}) {
      for (const std::int64_t head_dim : {64, 128}) {
        run(AttentionShape{.batch = 1,
                           .sequence = count % 2 == 0 ? 2 : 65,
                           .heads = 1,
                           .kv_heads = 1,
                           .head_dim = head_dim,
                           .causal = causal,
                           .keys = count});
      }
    }
  }
}

}  // namespace mkernel::test

#include "tests/support/varlen_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/random_tensor.h"

namespace mkernel::test {
namespace {

/// 0 and the sums up to each of `lengths`; the last one is repeated.
std::vector<std::int32_t> sums(const std::vector<std::int32_t>& lengths, std::int64_t count) {
  std::vector<std::int32_t> entries(static_cast<std::size_t>(count) + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), entries.begin() + 1);
  std::fill(entries.begin() + 1 + static_cast<std::ptrdiff_t>(lengths.size()), entries.end(),
            entries[lengths.size()]);
  return entries;
}

/// Rows `rows` of a tensor.
std::vector<std::uint16_t> cut(const std::vector<std::uint16_t>& tensor, Range rows, std::int64_t width) {
  return {tensor.begin() + rows.begin * width, tensor.begin() + rows.end * width};
}

/// Of a sequence without keys.
std::size_t not_zero(const std::vector<std::uint16_t>& out, const std::vector<float>& lse) {
  return static_cast<std::size_t>(std::count_if(out.begin(), out.end(), [](auto bits) { return bits != 0; }) +
                                  std::count_if(lse.begin(), lse.end(), [](float value) {
                                    return value != -std::numeric_limits<float>::infinity();
                                  }));
}

}  // namespace

SequenceLengths sequence_lengths(const std::vector<std::int32_t>& queries,
                                 const std::vector<std::int32_t>& keys, std::int64_t max_sequences) {
  return {sums(queries, max_sequences), sums(keys, max_sequences)};
}

SequenceLengths ragged_lengths(std::int64_t max_sequences) {
  return sequence_lengths({5, 0, 130, 1, 128, 77, 0, 300, 105}, {9, 40, 130, 320, 128, 0, 0, 200, 198},
                          max_sequences);
}

SequenceLengths many_lengths(std::int32_t count, std::int32_t most, std::uint32_t seed) {
  std::vector<std::int32_t> queries, keys;
  for (std::int32_t i = 0; i < count; ++i) {
    const auto random = [&] { return static_cast<std::int32_t>((seed = seed * 1664525 + 1013904223) >> 8); };
    queries.push_back(i % 7 == 3 ? 0 : random() % (most + 1));
    keys.push_back(i % 11 == 5 ? 0 : random() % (most + 1));
  }
  return sequence_lengths(queries, keys, count);
}

std::size_t wrong_varlen(const AttentionShape& shape, const SequenceLengths& lengths,
                         const AttentionTensors& tensors, const std::vector<std::uint16_t>& out,
                         const std::vector<float>& lse, Weights weights) {
  const std::int64_t q_width = shape.heads * shape.head_dim, kv_width = shape.kv_heads * shape.head_dim;
  std::size_t wrong = 0;
  const auto lse_of = [&](Range rows) {
    std::vector<float> cut;
    for (std::int64_t head = 0; head < shape.heads && !lse.empty(); ++head) {
      const auto of_head = lse.begin() + head * shape.sequence;
      cut.insert(cut.end(), of_head + rows.begin, of_head + rows.end);
    }
    return cut;
  };
  for (std::size_t i = 0; i + 1 < lengths.q.size(); ++i) {
    const Range queries{lengths.q[i], lengths.q[i + 1]}, keys{lengths.k[i], lengths.k[i + 1]};
    if (queries.size() == 0) continue;
    const auto of_out = cut(out, queries, q_width);
    const auto of_lse = lse_of(queries);
    if (keys.size() == 0) {
      wrong += not_zero(of_out, of_lse);
      continue;
    }
    AttentionShape one = shape;
    one.max_sequences = 0;
    one.sequence = queries.size();
    one.keys = keys.size();
    wrong += wrong_attention(
        one,
        {cut(tensors.q, queries, q_width), cut(tensors.k, keys, kv_width), cut(tensors.v, keys, kv_width)},
        of_out, of_lse, weights);
  }
  const Range rest{lengths.q.back(), shape.sequence};
  for (const std::uint16_t bits : cut(out, rest, q_width)) wrong += bits == kPoison ? 0 : 1;
  for (const float value : lse_of(rest)) wrong += std::isnan(value) ? 0 : 1;
  return wrong;
}

}  // namespace mkernel::test

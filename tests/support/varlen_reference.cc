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

/// Rows `rows` of log-sum-exps [heads, rows], or none of none.
std::vector<float> cut_lse(const AttentionShape& shape, const std::vector<float>& lse, Range rows) {
  std::vector<float> cut;
  const std::int64_t of_head = std::ssize(lse) / shape.heads;
  for (std::int64_t head = 0; head < shape.heads && !lse.empty(); ++head) {
    const auto first = lse.begin() + head * of_head;
    cut.insert(cut.end(), first + rows.begin, first + rows.end);
  }
  return cut;
}

/// Values behind the last sequence, which ends at row `end`, that have been written.
std::size_t not_poison(const AttentionShape& shape, const std::vector<std::uint16_t>& out,
                       const std::vector<float>& lse, std::int64_t end) {
  const std::int64_t width = shape.heads * shape.head_dim;
  const Range rest{end, std::ssize(out) / width};
  std::size_t wrong = 0;
  for (const std::uint16_t bits : cut(out, rest, width)) wrong += bits == kPoison ? 0 : 1;
  for (const float value : cut_lse(shape, lse, rest)) wrong += std::isnan(value) ? 0 : 1;
  return wrong;
}

/// One of the sequences that are packed, of `positions`.
AttentionShape one_of(const AttentionShape& shape, std::int64_t positions) {
  AttentionShape one = shape;
  one.max_sequences = 0;
  one.sequence = positions;
  return one;
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

std::vector<std::int32_t> ragged_ring_lengths(std::int64_t max_sequences) {
  return sums({6, 0, 130, 2, 128, 78, 0, 300, 106}, max_sequences);
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
  for (std::size_t i = 0; i + 1 < lengths.q.size(); ++i) {
    const Range queries{lengths.q[i], lengths.q[i + 1]}, keys{lengths.k[i], lengths.k[i + 1]};
    if (queries.size() == 0) continue;
    const auto of_out = cut(out, queries, q_width);
    const auto of_lse = cut_lse(shape, lse, queries);
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
  return wrong + not_poison(shape, out, lse, lengths.q.back());
}

std::vector<std::uint16_t> packed_rows_of_rank(const AttentionShape& shape,
                                               const std::vector<std::int32_t>& cu_seqlens,
                                               const std::vector<std::uint16_t>& whole, std::int64_t heads,
                                               std::int64_t world, std::int64_t rank) {
  const std::int64_t width = heads * shape.head_dim;
  std::vector<std::uint16_t> rows;
  for (std::size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    const Range positions{world * cu_seqlens[i], world * cu_seqlens[i + 1]};
    const auto of_rank =
        rows_of_rank(one_of(shape, positions.size()), cut(whole, positions, width), heads, world, rank);
    rows.insert(rows.end(), of_rank.begin(), of_rank.end());
  }
  rows.resize(static_cast<std::size_t>(shape.sequence / world * width), kPoison);
  return rows;
}

std::size_t wrong_ring_varlen(const AttentionShape& shape, const std::vector<std::int32_t>& cu_seqlens,
                              const AttentionTensors& tensors, std::int64_t world, std::int64_t rank,
                              const std::vector<std::uint16_t>& out, const std::vector<float>& lse,
                              Weights weights) {
  const std::int64_t q_width = shape.heads * shape.head_dim, kv_width = shape.kv_heads * shape.head_dim;
  std::size_t wrong = 0;
  for (std::size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    const Range rows{cu_seqlens[i], cu_seqlens[i + 1]}, positions{world * rows.begin, world * rows.end};
    if (rows.size() == 0) continue;
    wrong +=
        wrong_attention_of_rank(one_of(shape, positions.size()),
                                {cut(tensors.q, positions, q_width), cut(tensors.k, positions, kv_width),
                                 cut(tensors.v, positions, kv_width)},
                                world, rank, cut(out, rows, q_width), cut_lse(shape, lse, rows), weights);
  }
  return wrong + not_poison(shape, out, lse, cu_seqlens.back());
}

}  // namespace mkernel::test

// Attention of sequences of different lengths in fp64: each is cut out and compared with the reference of one
// sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "mkernel/ops.h"
#include "tests/support/attention_reference.h"

namespace mkernel::test {

/// cu_seqlens_q and cu_seqlens_k.
struct SequenceLengths {
  std::vector<std::int32_t> q, k;
};
/// Of these lengths. Up to max_sequences, sequences without rows follow.
SequenceLengths sequence_lengths(const std::vector<std::int32_t>& queries,
                                 const std::vector<std::int32_t>& keys, std::int64_t max_sequences);

/// Lengths that meet every border: sequences without queries, without keys or without both, those that end in
/// the middle of a tile and at its end, of one row, with more queries than keys and fewer. 9 sequences of 746
/// queries and 1,025 keys.
SequenceLengths ragged_lengths(std::int64_t max_sequences);

/// Sliding windows, (left, right), that meet every border of tiles of keys and of queries, and the positions
/// of ragged_lengths(). {126, 62} hides one corner of some pairs of tiles.
inline constexpr std::pair<std::int64_t, std::int64_t> kBorderWindows[] = {
    {0, 0},   {0, -1},  {1, -1},   {-1, 3},   {33, 0},  {64, 64},   {126, 62},
    {127, 0}, {128, 0}, {129, -1}, {100, 70}, {2, 500}, {1000, -1}, {2000, 2000}};

/// So many sequences, of at most `most` queries and keys, some without any.
SequenceLengths many_lengths(std::int32_t count, std::int32_t most, std::uint32_t seed);

/// Outputs, log-sum-exps among them unless there are none, that are farther from the reference than `weights`
/// explain, and rows behind the last sequence that are not poison any more. `tensors`, `out` and `lse`:
/// packed.
std::size_t wrong_varlen(const AttentionShape& shape, const SequenceLengths& lengths,
                         const AttentionTensors& tensors, const std::vector<std::uint16_t>& out,
                         const std::vector<float>& lse, Weights weights);

/// The same of ring attention over packed sequences: `cu_seqlens` is what every rank is given, `shape` that
/// of the operation. `whole` and `tensors` have all sequences one behind the other, each with its positions
/// of all ranks together. Rows of a rank that belong to no sequence are poison.
std::vector<std::uint16_t> packed_rows_of_rank(const AttentionShape& shape,
                                               const std::vector<std::int32_t>& cu_seqlens,
                                               const std::vector<std::uint16_t>& whole, std::int64_t heads,
                                               std::int64_t world, std::int64_t rank);
std::size_t wrong_ring_varlen(const AttentionShape& shape, const std::vector<std::int32_t>& cu_seqlens,
                              const AttentionTensors& tensors, std::int64_t world, std::int64_t rank,
                              const std::vector<std::uint16_t>& out, const std::vector<float>& lse,
                              Weights weights);
/// Lengths with even numbers of rows, so that each has two parts on a rank, and otherwise those of
/// ragged_lengths(): 9 sequences of 750 rows of a rank.
std::vector<std::int32_t> ragged_ring_lengths(std::int64_t max_sequences);

}  // namespace mkernel::test

// Cases of attention of a rank alone, of its backward pass and of ring attention, that both executors are
// tested with.
#pragma once

#include <cstdint>
#include <utility>

#include "mkernel/ops.h"
#include "tests/support/attention_reference.h"

namespace mkernel::test {

/// Calls run(shape, scale) for every case, with every size of heads that the GPU takes, every mask and every
/// type. `scale`: of queries and keys. Up to `longest` positions.
template <class Run>
void for_every_attention_case(std::int64_t longest, const Run& run) {
  const auto all = [&](const AttentionShape& of, float scale = 2) {
    for_every_attention(of, [&](const AttentionShape& shape) { run(shape, scale); });
  };
  // Every length, heads that share keys: none, eight, all.
  for (const std::int64_t sequence : {1, 7, 128, 129, 500}) {
    all({.batch = 2, .sequence = sequence, .heads = 2, .kv_heads = 2});
    all({.batch = 1, .sequence = sequence, .heads = 32, .kv_heads = 4});
    all({.batch = 3, .sequence = sequence, .heads = 3, .kv_heads = 1});
  }
  if (longest >= 4096) all({.batch = 1, .sequence = 4096, .heads = 1, .kv_heads = 1});
  // A mask at every border of a tile. Where keys are fewer than queries, the first queries see none with a
  // causal mask: their outputs are zeros, and their log-sum-exps are minus infinity.
  for (const std::int64_t keys : {1, 63, 64, 65, 127, 128, 129, 159, 160, 161, 191, 192, 193, 320, 1001}) {
    for (const std::int64_t queries : {1, 65, 300})
      all({.batch = 2, .sequence = queries, .heads = 2, .kv_heads = 1, .keys = keys});
  }
  // Scores whose exponentials no type has.
  all({.batch = 1, .sequence = 300, .heads = 2, .kv_heads = 2, .scale = 4}, 4);
}

/// Of ring attention: run(shape, scale, nodes, ranks of a node) for every case, every query of which sees its
/// own key at least.
template <class Run>
void for_every_ring_case(const Run& run) {
  const auto all = [&](std::uint32_t nodes, std::uint32_t ranks, const AttentionShape& of, float scale = 2) {
    for_every_attention(of, [&](const AttentionShape& shape) { run(shape, scale, nodes, ranks); });
  };
  // Also fewer positions than ranks.
  for (const auto& [nodes, ranks] : {std::pair{1U, 1U}, {1U, 3U}, {2U, 1U}, {2U, 2U}, {3U, 1U}}) {
    for (const std::int64_t sequence : {1, 7, 300})
      all(nodes, ranks, {.batch = 2, .sequence = sequence, .heads = 4, .kv_heads = 2});
  }
  all(1, 4, {.batch = 1, .sequence = 4096, .heads = 1, .kv_heads = 1});
  all(2, 1, {.batch = 1, .sequence = 4096, .heads = 1, .kv_heads = 1});
  all(1, 2, {.batch = 1, .sequence = 300, .heads = 32, .kv_heads = 4});
  all(2, 2, {.batch = 1, .sequence = 300, .heads = 3, .kv_heads = 1});
  all(2, 2, {.batch = 1, .sequence = 300, .heads = 2, .kv_heads = 2, .scale = 4}, 4);
}

/// The longest one, of which rows are sampled.
inline constexpr AttentionShape kLongAttention{
    .batch = 1, .sequence = 100003, .heads = 1, .kv_heads = 1, .head_dim = 64, .causal = true};

/// Of `rows` rows every how many-th is looked at so that about `looked` are: an odd number, or 1.
constexpr std::int64_t sampling_step(std::int64_t rows, std::int64_t looked) {
  return rows > looked ? (rows / looked) | 1 : 1;
}

}  // namespace mkernel::test

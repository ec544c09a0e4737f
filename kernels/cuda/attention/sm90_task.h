// What the feed of the attention body hands out (sm90_attention.cuh).
#pragma once

#include <cstdint>

namespace mkernel::kernels {

/// A tile of queries of one head, and the keys that it attends to. Rows and columns are those of the tensors
/// seen as matrices: a row for each position, in it the heads side by side.
struct alignas(16) AttentionTask {
  static constexpr std::int32_t kEnd = -1;

  std::int32_t key_tiles;    ///< kEnd: there are no more tasks
  std::int32_t keys;         ///< of the sequence
  std::int32_t visible;      ///< keys that the tile's first query sees; every query behind it sees one more
  std::int32_t query;        ///< position of the tile's first query in its sequence
  std::int32_t queries;      ///< of the sequence
  std::int32_t query_first;  ///< row where the queries of the sequence begin
  std::int32_t key_first;    ///< row where its keys begin
  std::int32_t query_column;
  std::int32_t key_column;
  std::int32_t reserved;
  std::int64_t lse;  ///< index of the first query's log-sum-exp
};
static_assert(sizeof(AttentionTask) == 48);

}  // namespace mkernel::kernels

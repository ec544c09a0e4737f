// What the feed of the attention body hands out (sm90_attention.cuh).
#pragma once

#include <cstdint>

#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Keys that follow each other in one tensor, and which of them queries see.
struct AttentionSegment {
  std::int32_t keys;     ///< the last one that any query of the tile sees, and those before it
  std::int32_t visible;  ///< keys that the tile's first query sees; every query behind it sees one more

  MK_HOST_DEVICE std::int32_t tiles(std::int32_t tile_keys) const {
    return (keys + tile_keys - 1) / tile_keys;
  }
};

/// A tile of queries of one head, and the keys that it attends to. Rows and columns are those of the tensors
/// seen as matrices: a row for each position, in it the heads side by side.
struct alignas(16) AttentionTask {
  static constexpr std::int32_t kEnd = -1;

  std::int32_t key_tiles;    ///< of all segments; kEnd: there are no more tasks
  AttentionSegment first;    ///< the first segment; it has a tile when any segment has one
  std::int32_t query;        ///< position of the tile's first query in its sequence
  std::int32_t queries;      ///< of the sequence
  std::int32_t query_first;  ///< row where the queries of the sequence begin
  std::int32_t batch;        ///< for the feed
  std::int32_t query_column;
  std::int32_t key_column;  ///< for the feed
  std::int32_t part;        ///< for the feed
  std::int64_t lse;         ///< index of the first query's log-sum-exp
};
static_assert(sizeof(AttentionTask) == 48);

}  // namespace mkernel::kernels

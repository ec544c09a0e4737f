// The backward pass of attention as a persistent kernel takes it: tasks are tiles of keys, each walks the
// tiles of queries that see it, and adds to the gradient of every one of them in an order that is fixed. Pure
// functions, the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/plan/attention_tasks.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

inline constexpr std::int32_t kBackwardTileKeys = 128;
inline constexpr std::int32_t kBackwardTileQueries = 64;

/// Tasks are taken in the order of their numbers, the heads of a section in turns, and a tile of queries
/// takes the adds of its tiles of keys in the order of the tasks. A task therefore waits only for tasks that
/// were taken before it, which are over or under way: no circle of waits is possible, however many are
/// computed at a time.
///
/// Of a head the last keys come first, and tasks walk their tiles of queries upwards. With a causal mask the
/// task before starts behind the first tile of the next one and stays ahead of it, so nobody waits where
/// tasks run at the same speed. Without a mask the tasks of a head that are taken at the same time follow
/// each other at a distance of one tile, once at the start.
///
/// With a causal mask the last tasks would be the longest ones, and multiprocessors would end at different
/// times. In the last section the first keys come first instead, and tasks walk downwards, all from the last
/// tile: the tasks of a head follow each other at a distance of one tile. (Not where heads share keys: at the
/// start of every head but the first, short tasks would wait for long ones.)
class AttentionBackwardTasks {
 public:
  struct Place {
    std::int32_t batch = 0;
    std::int32_t kv_head = 0;
    std::int32_t tile = 0;  ///< of the keys
    bool downwards = false;
  };
  /// Tiles of the queries of a head, both ends included; downwards `first` is the greater one.
  struct Walk {
    std::int32_t first = 0, last = 0;
  };

  AttentionBackwardTasks() = default;
  /// `heads` % `kv_heads` == 0; `keys` > 0.
  AttentionBackwardTasks(std::int32_t batch, std::int32_t heads, std::int32_t kv_heads, std::int32_t queries,
                         std::int32_t keys, std::int32_t head_dim, bool causal)
      : order_(batch, kv_heads, kv_heads, (keys + kBackwardTileKeys - 1) / kBackwardTileKeys,
               std::int64_t{heads / kv_heads} * queries * head_dim * kQueryBytes),
        queries_(queries),
        keys_(keys),
        causal_(causal),
        downwards_from_(causal && heads == kv_heads ? order_.last_section() : order_.tasks()) {}

  MK_HOST_DEVICE std::int32_t tasks() const { return order_.tasks(); }
  MK_HOST_DEVICE Place place(std::int32_t task) const {
    const AttentionTasks::Place place = order_.place(task);
    const std::int32_t last = (keys_ - 1) / kBackwardTileKeys;
    const bool downwards = task >= downwards_from_;
    return {place.batch, place.head, downwards ? last - place.tile : place.tile, downwards};
  }
  MK_HOST_DEVICE Walk walk(const Place& place) const {
    const std::int32_t first = first_query_tile(place.tile), last = query_tiles() - 1;
    return place.downwards ? Walk{last, first} : Walk{first, last};
  }
  /// How many tiles of keys add to the gradient of a tile of queries before this one does.
  MK_HOST_DEVICE std::int32_t turn(const Place& place, std::int32_t query_tile) const {
    return place.downwards ? place.tile : adds(query_tile) - 1 - place.tile;
  }

  /// Of the queries of a head.
  MK_HOST_DEVICE std::int32_t query_tiles() const {
    return (queries_ + kBackwardTileQueries - 1) / kBackwardTileQueries;
  }
  /// The first tile of queries with one that sees a key of the tile. All tiles behind it have one too.
  MK_HOST_DEVICE std::int32_t first_query_tile(std::int32_t key_tile) const {
    const std::int32_t query = causal_ ? key_tile * kBackwardTileKeys - (keys_ - queries_) : 0;
    return query > 0 ? query / kBackwardTileQueries : 0;
  }
  /// Tiles of keys that add to the gradient of a tile of queries.
  MK_HOST_DEVICE std::int32_t adds(std::int32_t query_tile) const {
    const std::int32_t behind = (query_tile + 1) * kBackwardTileQueries;
    const std::int32_t end = behind < queries_ ? behind : queries_;
    const std::int32_t seen = attention_visible_keys(end, queries_, keys_, causal_);
    return (seen + kBackwardTileKeys - 1) / kBackwardTileKeys;
  }

 private:
  /// Of an element of a query: itself, its output's gradient, and its own in fp32.
  static constexpr std::int64_t kQueryBytes = 2 + 2 + 4;

  AttentionTasks order_;  ///< with tiles of keys in place of queries
  std::int32_t queries_ = 0, keys_ = 0;
  bool causal_ = false;
  std::int32_t downwards_from_ = 0;  ///< the first task that walks downwards
};

}  // namespace mkernel::kernels

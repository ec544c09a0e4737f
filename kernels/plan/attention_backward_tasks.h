// The backward pass of attention as a persistent kernel takes it: tasks are tiles of keys, each walks the
// tiles of queries that see it, and adds to the gradient of every one of them in an order that is fixed. Pure
// functions, the same on host and device.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/plan/attention_tasks.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

inline constexpr std::int32_t kBackwardTileKeys = 128;
inline constexpr std::int32_t kBackwardTileQueries = 64;

/// Tiles of the queries of a head, both ends included: upwards from `first` to `last`, or downwards.
struct AttentionBackwardWalk {
  std::int32_t first = 0, last = 0;
  bool by_head = false;  ///< all tiles of one head after the other; else all heads of one tile

  MK_HOST_DEVICE std::int32_t tiles() const { return (first < last ? last - first : first - last) + 1; }
};

/// The steps of a task: of every tile of its walk, the heads that share its keys one after the other, or of
/// every head the tiles. Tasks that take their steps in one order, from the same tile on, follow each other
/// at a distance of one step, however many heads there are.
class AttentionBackwardSteps {
 public:
  /// `walk` outlives this, which refers to it.
  MK_HOST_DEVICE AttentionBackwardSteps(const AttentionBackwardWalk& walk, std::int32_t heads)
      : walk_(&walk), heads_(heads), tile_(walk.first) {}

  MK_HOST_DEVICE std::int32_t steps() const { return walk_->tiles() * heads_; }
  /// Counted from the first head of the task.
  MK_HOST_DEVICE std::int32_t head() const { return head_; }
  MK_HOST_DEVICE std::int32_t tile() const { return tile_; }
  /// Whether no step before was of this head.
  MK_HOST_DEVICE bool begins_head() const { return tile_ == walk_->first; }
  MK_HOST_DEVICE void advance() {
    // Of head and tile one counts at every step, and the other one when that begins anew.
    const bool wraps = walk_->by_head ? tile_ == walk_->last : head_ + 1 == heads_;
    if (walk_->by_head == wraps) {
      ++head_;
      if (wraps) tile_ = walk_->first;
      return;
    }
    if (wraps) head_ = 0;
    tile_ += walk_->first < walk_->last ? 1 : -1;
  }

 private:
  const AttentionBackwardWalk* walk_;  // in a kernel in shared memory, where registers are few
  std::int32_t heads_;
  std::int32_t tile_, head_ = 0;
};

/// Queries and keys of one sequence, in tiles, and which of them see each other. The mask is that of
/// attention_visible_keys().
struct AttentionBackwardTiles {
  std::int32_t queries = 0, keys = 0;
  bool causal = false;

  /// Of the queries of a head.
  MK_HOST_DEVICE std::int32_t query_tiles() const {
    return (queries + kBackwardTileQueries - 1) / kBackwardTileQueries;
  }
  /// The first tile of queries with one that sees a key of the tile. All tiles behind it have one too.
  MK_HOST_DEVICE std::int32_t first_query_tile(std::int32_t key_tile) const {
    const std::int32_t query = causal ? key_tile * kBackwardTileKeys - (keys - queries) : 0;
    return query > 0 ? query / kBackwardTileQueries : 0;
  }
  /// Tiles of keys that add to the gradient of a tile of queries.
  MK_HOST_DEVICE std::int32_t adds(std::int32_t query_tile) const {
    const std::int32_t behind = (query_tile + 1) * kBackwardTileQueries;
    const std::int32_t end = behind < queries ? behind : queries;
    return key_tiles(attention_visible_keys(end, queries, keys, causal));
  }
  MK_HOST_DEVICE AttentionBackwardWalk walk(std::int32_t key_tile, bool downwards) const {
    const std::int32_t first = first_query_tile(key_tile), last = query_tiles() - 1;
    return downwards ? AttentionBackwardWalk{last, first} : AttentionBackwardWalk{first, last};
  }

  MK_HOST_DEVICE static constexpr std::int32_t key_tiles(std::int32_t keys) {
    return (keys + kBackwardTileKeys - 1) / kBackwardTileKeys;
  }
};

/// Of a section of the tasks of a backward pass: what they read and add of the queries of `group` heads,
/// which share keys.
MK_HOST_DEVICE constexpr std::int64_t attention_backward_query_bytes(std::int32_t group, std::int32_t queries,
                                                                     std::int32_t head_dim) {
  constexpr std::int64_t kOfElement = 2 + 2 + 4;  // itself, its output's gradient, and its own in fp32
  return std::int64_t{group} * queries * head_dim * kOfElement;
}
/// Heads of keys that a section has at least, with so many tiles of keys each; `shared`: by heads of queries.
/// NOTES: measured on an H100, 4 * 16 heads and 64 heads that share 8, causal. Sections that do not fit the
/// L2 cost up to 30 % where tasks walk upwards, and up to 10 % where they walk downwards.
MK_HOST_DEVICE constexpr std::int32_t attention_backward_fewest_heads(bool shared, std::int32_t key_tiles) {
  const std::int32_t tasks = shared ? 256 : 128;
  return (tasks + key_tiles - 1) / key_tiles;
}

/// Tasks are taken in the order of their numbers, the heads of a section in turns, and a tile of queries
/// takes the adds of its tiles of keys in the order of the tasks. A task therefore waits only for tasks that
/// were taken before it, which are over or under way: no circle of waits is possible, however many are
/// computed at a time.
///
/// Of a head the last keys come first, and tasks walk their tiles of queries upwards. With a causal mask the
/// task before starts behind the first tile of the next one and stays ahead of it, so nobody waits where
/// tasks run at the same speed. Without a mask the tasks of a head that are taken at the same time follow
/// each other at a distance of one step, once at the start.
///
/// With a causal mask the last tasks would be the longest ones, and multiprocessors would end at different
/// times. In the last section the first keys come first instead, and tasks walk downwards, all from the last
/// tile: the tasks of a head follow each other at a distance of one step. Where heads share keys, that is the
/// order of all sections: walking upwards, the next task would come to a tile only after two tiles of all
/// these heads, when the L2 does not hold it any more.
///
/// Where `ctas` is given and a section that begins with the first keys has just two tasks for each of them,
/// the second half of its tiles walks upwards. CTAs take these tasks one by one as the long ones end, some 15
/// steps apart where eight heads share keys, which is too far for the L2 when all begin at the last tile.
/// Upwards each begins at its own diagonal, about as far ahead of the one before, and they come to a tile at
/// the same time. The order of adds is the same. With other numbers of tasks the halves would wait for each
/// other.
///
/// A section has one or two tasks per multiprocessor at least, also where the queries of its heads do not fit
/// the L2 together: tasks of a head that run at the same time read the same tiles of queries at about the
/// same time.
class AttentionBackwardTasks {
 public:
  struct Place {
    std::int32_t batch = 0;
    std::int32_t kv_head = 0;
    std::int32_t tile = 0;   ///< of the keys
    bool downwards = false;  ///< its section begins with the first keys
  };
  using Walk = AttentionBackwardWalk;

  AttentionBackwardTasks() = default;
  /// `heads` % `kv_heads` == 0; `keys` > 0. `ctas`: that take tasks; 0: of a section that begins with the
  /// first keys all walk downwards.
  AttentionBackwardTasks(std::int32_t batch, std::int32_t heads, std::int32_t kv_heads, std::int32_t queries,
                         std::int32_t keys, std::int32_t head_dim, bool causal, std::int32_t ctas = 0)
      : order_(batch, kv_heads, kv_heads, key_tiles(keys),
               attention_backward_query_bytes(heads / kv_heads, queries, head_dim),
               attention_backward_fewest_heads(heads > kv_heads, key_tiles(keys))),
        tiles_{queries, keys, causal},
        downwards_from_(!causal            ? order_.tasks()
                        : heads > kv_heads ? 0
                                           : order_.last_section()) {
    const std::int32_t tiles = key_tiles(keys), section = tiles * order_.section_heads();
    if (section <= 2 * ctas && 8 * section >= 15 * ctas) upwards_from_ = tiles / 2;
  }

  MK_HOST_DEVICE std::int32_t tasks() const { return order_.tasks(); }
  MK_HOST_DEVICE Place place(std::int32_t task) const {
    const AttentionTasks::Place place = order_.place(task);
    const std::int32_t last = (tiles_.keys - 1) / kBackwardTileKeys;
    const bool downwards = task >= downwards_from_;
    return {place.batch, place.head, downwards ? last - place.tile : place.tile, downwards};
  }
  MK_HOST_DEVICE Walk walk(const Place& place) const {
    return tiles_.walk(place.tile, place.downwards && place.tile < upwards_from_);
  }
  /// How many tiles of keys add to the gradient of a tile of queries before this one does.
  MK_HOST_DEVICE std::int32_t turn(const Place& place, std::int32_t query_tile) const {
    return place.downwards ? place.tile : adds(query_tile) - 1 - place.tile;
  }

  /// Of the queries of a head.
  MK_HOST_DEVICE std::int32_t query_tiles() const { return tiles_.query_tiles(); }
  /// Tiles of keys that add to the gradient of a tile of queries.
  MK_HOST_DEVICE std::int32_t adds(std::int32_t query_tile) const { return tiles_.adds(query_tile); }

  MK_HOST_DEVICE static constexpr std::int32_t key_tiles(std::int32_t keys) {
    return AttentionBackwardTiles::key_tiles(keys);
  }

 private:
  AttentionTasks order_;  ///< with tiles of keys in place of queries
  AttentionBackwardTiles tiles_;
  std::int32_t downwards_from_ = 0;  ///< the first task of a section that begins with the first keys
  std::int32_t upwards_from_ = std::numeric_limits<std::int32_t>::max();  ///< tile of keys of such a section
};

}  // namespace mkernel::kernels

// The backward pass of ring attention as a persistent kernel takes it: tasks are tiles of keys of all ranks,
// each walks the tiles of own queries that see it. Pure functions, the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/plan/attention_backward_tasks.h"
#include "kernels/plan/attention_tasks.h"
#include "kernels/plan/kv_gather_plan.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Tasks are taken in the order of their numbers: own keys first, which are there, then those of the other
/// ranks in the order of KvGatherPlan::source(); of a rank the second part of its positions before the first
/// one; of a part the last keys first, but of own parts the first ones. A tile of keys, and one of queries,
/// lies within one part, so a tile of another rank is seen wholly or not at all: there are masks on the
/// diagonals of own parts only. Parts that no own query sees have no tasks.
///
/// Over several nodes the keys of other nodes come between the own ones and those of the node: while the
/// latter are computed, the gradients of the former travel. They are taken section after section, of all
/// those ranks: a few heads are whole after a part of the time, at all rail peers, and so all rails are used.
///
/// A tile of queries takes the adds of tiles of keys in the order of the tasks, so a task waits only for
/// tasks that were taken before it. Tasks walk upwards, head after head where heads share keys. With a causal
/// mask those of own keys, which are of different lengths, walk downwards, all heads of a tile: so all tasks
/// of a part begin with the same tile of queries (AttentionBackwardTasks).
class RingBackwardTasks {
 public:
  struct Place {
    std::int32_t source = 0, part = 0;  ///< whose keys, and which of their parts
    std::int32_t head = 0;              ///< of keys and values, of all batch entries
    std::int32_t tile = 0;              ///< of the part
    std::int32_t first_query_tile = 0;  ///< that sees it; all behind it do, too
    bool downwards = false;             ///< in which direction the task walks
    /// A tile of queries of that part takes this one's add after so many and those on its diagonal; where
    /// these keys are on it, after -1 - `before`.
    std::int32_t before[2] = {};
  };

  RingBackwardTasks() = default;
  /// `ctas`: that take tasks. A section has as few heads as keep them busy, for what tasks read and add of
  /// queries is to stay in the L2 from one task of a head to the next, which may be anywhere in its walk.
  RingBackwardTasks(const KvGatherPlan& gather, std::int32_t ctas)
      : heads_(gather.heads), causal_(gather.causal) {
    for (int part = 0; part < 2; ++part) {
      queries_[part] = gather.part_rows[gather.rank][part];
      tiles_[part] = (queries_[part] + kBackwardTileQueries - 1) / kBackwardTileQueries;
    }
    for (std::int32_t step = 0; step < gather.world; ++step) {
      const std::int32_t source = gather.source(step);
      for (std::int32_t part = 0; part < 2; ++part) {
        if (!is_seen(gather, gather.rank, source, part)) continue;
        tasks_ += heads_ * key_tiles(gather, source, part);
        count_adds(gather, source, part, others_);
      }
      if (step == 0) own_tasks_ = tasks_;
    }
    if (tasks_ == 0) return;
    const std::int32_t queries = queries_[0] > 0 ? queries_[0] : queries_[1];
    const std::int32_t tiles = queries > 0 ? AttentionBackwardTasks::key_tiles(queries) : 1;  // of a part
    const std::int32_t busy = (ctas + tiles - 1) / tiles;
    section_heads_ = busy < heads_ ? busy : heads_;
    const std::int32_t left = heads_ % section_heads_;
    last_heads_ = left > 0 ? left : section_heads_;
  }

  MK_HOST_DEVICE std::int32_t tasks() const { return tasks_; }
  /// The first ones, whose keys are own ones.
  MK_HOST_DEVICE std::int32_t own_tasks() const { return own_tasks_; }
  /// On one node. `gather`: that the tasks were made from.
  MK_HOST_DEVICE Place place(const KvGatherPlan& gather, std::int32_t task) const {
    Place place;
    find(gather, 0, gather.world, {0, heads_, section_heads_, last_heads_}, task, place);
    return place;
  }
  /// Likewise over any number of nodes. `far_tiles`: far_tiles(gather).
  MK_HOST_DEVICE Place place(const KvGatherPlan& gather, std::int32_t task, std::int32_t far_tiles) const {
    const Heads all{0, heads_, section_heads_, last_heads_};
    Heads far = all;
    Place place;
    if (find(gather, 0, 1, all, task, place)) return place;
    if (task < heads_ * far_tiles) {  // of one section of other nodes' keys
      const std::int32_t section_tasks = section_heads_ * far_tiles, section = task / section_tasks;
      task -= section * section_tasks;
      far.first = section * section_heads_;
      const std::int32_t left = heads_ - far.first;
      far.count = far.of_section = far.of_last = left < section_heads_ ? left : section_heads_;
    }
    if (find(gather, gather.near + 1, gather.world, far, task, place)) return place;
    find(gather, 1, gather.near + 1, all, task, place);
    return place;
  }
  /// Of one head: those of other nodes.
  MK_HOST_DEVICE std::int32_t far_tiles(const KvGatherPlan& gather) const {
    std::int32_t tiles = 0;
    for (std::int32_t step = gather.near + 1; step < gather.world; ++step) {
      for (std::int32_t part = 0; part < 2; ++part) {
        const std::int32_t source = gather.source(step);
        if (is_seen(gather, gather.rank, source, part)) tiles += key_tiles(gather, source, part);
      }
    }
    return tiles;
  }

  /// Of the own queries of a head: those of part 0, then those of part 1.
  MK_HOST_DEVICE std::int32_t query_tiles() const { return tiles_[0] + tiles_[1]; }
  MK_HOST_DEVICE std::int32_t first_tiles() const { return tiles_[0]; }
  /// How many tiles of keys add to the gradient of a tile of queries before that one does.
  MK_HOST_DEVICE std::int32_t turn(const std::int32_t (&before)[2], std::int32_t query_tile) const {
    const std::int32_t here = before[part_of(query_tile)];
    return here < 0 ? -1 - here : diagonal_adds(query_tile) + here;
  }
  MK_HOST_DEVICE AttentionBackwardWalk walk(const Place& place) const {
    const std::int32_t first = place.first_query_tile, last = query_tiles() - 1;
    if (place.downwards) return {last, first};
    return {first, last, true};
  }
  /// Tiles of keys that add to the gradient of a tile of queries.
  MK_HOST_DEVICE std::int32_t adds(std::int32_t query_tile) const {
    return diagonal_adds(query_tile) + others_[part_of(query_tile)];
  }

  /// Whether the queries of part `queries` of `rank` see keys of that part of `source`: all of them, but for
  /// the diagonal of a part of its own.
  static MK_HOST_DEVICE bool sees(const KvGatherPlan& gather, std::int32_t rank, std::int32_t queries,
                                  std::int32_t source, std::int32_t part) {
    if (gather.part_rows[rank][queries] == 0 || gather.part_rows[source][part] == 0) return false;
    if (!gather.causal) return true;
    if (source == rank) return queries >= part;
    return part == 0 ? queries == 1 || source < rank : queries == 1 && source > rank;
  }
  /// Whether `rank` has a part of the gradients of these keys.
  static MK_HOST_DEVICE bool is_seen(const KvGatherPlan& gather, std::int32_t rank, std::int32_t source,
                                     std::int32_t part) {
    return sees(gather, rank, 0, source, part) || sees(gather, rank, 1, source, part);
  }

 private:
  /// That a run of tasks is of: `count` from `first` on, cut into sections.
  struct Heads {
    std::int32_t first, count, of_section, of_last;
  };

  /// Task number `task` of the parts of some sources, at steps `first` .. `end` - 1: whether there are so
  /// many. Else `task` counts on from what follows; `place.before` then has their adds.
  MK_HOST_DEVICE bool find(const KvGatherPlan& gather, std::int32_t first, std::int32_t end,
                           const Heads& heads, std::int32_t& task, Place& place) const {
    for (std::int32_t step = first; step < end; ++step) {
      place.source = gather.source(step);
      for (place.part = 1; place.part >= 0; --place.part) {
        if (!is_seen(gather, gather.rank, place.source, place.part)) continue;
        const std::int32_t tiles = key_tiles(gather, place.source, place.part);
        count_adds(gather, place.source, place.part, place.before);
        if (task < heads.count * tiles) {
          place = in_part(gather, task, tiles, heads, place);
          return true;
        }
        task -= heads.count * tiles;
      }
    }
    return false;
  }

  static MK_HOST_DEVICE std::int32_t key_tiles(const KvGatherPlan& gather, std::int32_t source,
                                               std::int32_t part) {
    return AttentionBackwardTasks::key_tiles(gather.part_rows[source][part]);
  }
  /// Whether the keys are of the very positions of the queries of that part.
  static MK_HOST_DEVICE bool is_diagonal(const KvGatherPlan& gather, std::int32_t queries,
                                         std::int32_t source, std::int32_t part) {
    return source == gather.rank && part == queries;
  }
  /// Adds of a part's tiles of keys to every tile of queries, by part of the queries; not those on a
  /// diagonal.
  static MK_HOST_DEVICE void count_adds(const KvGatherPlan& gather, std::int32_t source, std::int32_t part,
                                        std::int32_t (&adds)[2]) {
    for (std::int32_t queries = 0; queries < 2; ++queries) {
      if (sees(gather, gather.rank, queries, source, part) && !is_diagonal(gather, queries, source, part))
        adds[queries] += key_tiles(gather, source, part);
    }
  }

  MK_HOST_DEVICE std::int32_t part_of(std::int32_t query_tile) const {
    return query_tile < tiles_[0] ? 0 : 1;
  }
  /// Tiles of keys of its own part, which come first, that a tile of queries sees.
  MK_HOST_DEVICE std::int32_t diagonal_adds(std::int32_t query_tile) const {
    const std::int32_t part = part_of(query_tile), queries = queries_[part];
    const std::int32_t end = (query_tile - part * tiles_[0] + 1) * kBackwardTileQueries;
    const std::int32_t seen = causal_ && end < queries ? end : queries;
    return AttentionBackwardTasks::key_tiles(seen);
  }
  /// Task number `task` of the part, `place.before` of which are those of all its tiles.
  MK_HOST_DEVICE Place in_part(const KvGatherPlan& gather, std::int32_t task, std::int32_t tiles,
                               const Heads& heads, Place place) const {
    const AttentionHeadTile at = attention_head_tile(task, heads.count, tiles, heads.of_section,
                                                     heads.of_last, heads.of_section * tiles);
    const bool own = place.source == gather.rank;
    place.head = heads.first + at.head;
    place.tile = own ? tiles - 1 - at.tile : at.tile;
    place.downwards = own && causal_;
    for (std::int32_t part = 0; part < 2; ++part) {
      const bool diagonal = is_diagonal(gather, part, place.source, place.part);
      place.before[part] = diagonal ? -1 - place.tile : place.before[part] - (1 + at.tile);
    }
    const std::int32_t first = sees(gather, gather.rank, 0, place.source, place.part) ? 0 : 1;
    const bool masked = causal_ && is_diagonal(gather, first, place.source, place.part);
    place.first_query_tile =
        first * tiles_[0] + (masked ? place.tile * (kBackwardTileKeys / kBackwardTileQueries) : 0);
    return place;
  }

  std::int32_t heads_ = 0;
  std::int32_t queries_[2] = {}, tiles_[2] = {};  ///< own ones, by part
  std::int32_t others_[2] = {};                   ///< tiles of keys of other parts that queries of a part see
  std::int32_t tasks_ = 0, own_tasks_ = 0;
  std::int32_t section_heads_ = 1, last_heads_ = 1;  ///< heads of a section, and of the last one
  bool causal_ = false;
};

}  // namespace mkernel::kernels

// The backward pass of attention of sequences of different lengths, and with windows: the tasks of a
// sequence, the order in which a persistent kernel takes them, and the order of adds. Pure functions, the
// same on host and device.
#pragma once

#include <cstdint>

#include "kernels/plan/attention_backward_tasks.h"
#include "kernels/plan/attention_sequences.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// A sequence in the list of tasks of a backward pass.
struct AttentionBackwardSlot : AttentionSlot {
  std::int32_t first_tile;  ///< attention_first_query_tile()
};

/// Tiles of queries are numbered over all sequences, so that none has those of two: sequence number
/// `sequence`, whose queries begin with row `query_first`, has the numbers from here on. Some numbers are of
/// no tile.
MK_HOST_DEVICE constexpr std::int64_t attention_first_query_tile(std::int64_t query_first,
                                                                 std::int64_t sequence) {
  return query_first / kBackwardTileQueries + sequence;
}

/// Queries and keys of one sequence with a sliding window, in tiles, and which of them see each other. No
/// side of the window is kAll: one that hides nothing has as many keys as there are rows, less one.
///
/// Tasks begin with the first keys and walk downwards: a tile of keys starts two tiles of queries behind
/// where the one before it did, so tasks of a head that begin at the same time never wait for each other, but
/// at the end of the sequence, where they follow each other at a distance of one step.
struct AttentionBackwardWindowTiles {
  std::int32_t queries, keys;
  AttentionWindow window;

  /// The first tile of keys that the window leaves to a tile of queries; those behind have this or a later
  /// one.
  MK_HOST_DEVICE std::int32_t first_key_tile(std::int32_t query_tile) const {
    return key_tile_of(query_tile * kBackwardTileQueries + first_key());
  }
  /// Keys before it are hidden from the first query: a position, which may be negative.
  MK_HOST_DEVICE std::int32_t first_key() const {
    const std::int32_t key = keys - queries - window.left;
    return key > -queries ? key : -queries;  // no query sees less of the keys for that
  }
  MK_HOST_DEVICE static constexpr std::int32_t key_tile_of(std::int32_t key) {
    return (key > 0 ? key : 0) / kBackwardTileKeys;
  }
  /// Tiles of keys that add to the gradient of a tile of queries.
  MK_HOST_DEVICE std::int32_t adds(std::int32_t query_tile) const {
    const std::int32_t behind = (query_tile + 1) * kBackwardTileQueries;
    const std::int32_t last = (behind < queries ? behind : queries) - 1 + keys - queries + window.right;
    const std::int32_t last_key = last < keys ? last : keys - 1;
    return last_key < 0 ? 0 : last_key / kBackwardTileKeys - first_key_tile(query_tile) + 1;
  }
  /// Of a tile of keys that a query sees, which is first_key_tile(0) or behind it. Downwards.
  MK_HOST_DEVICE AttentionBackwardWalk walk(std::int32_t key_tile) const {
    const std::int32_t key = key_tile * kBackwardTileKeys, behind = key + kBackwardTileKeys;
    const std::int32_t first = key - (keys - queries) - window.right;
    const std::int32_t last = (behind < keys ? behind : keys) - 1 - (keys - queries) + window.left;
    return {(last < queries ? last : queries - 1) / kBackwardTileQueries,
            (first > 0 ? first : 0) / kBackwardTileQueries};
  }
};

/// A tile of queries by its number; of no tile it has no rows.
struct AttentionQueryTile {
  std::int32_t begin, end;  ///< rows
  std::int32_t adds;        ///< of tiles of keys to the gradients of its queries
};
/// `lengths`: that are good, without a window of packed sequences. `window`: as that of
/// AttentionBackwardTaskList.
MK_HOST_DEVICE inline AttentionQueryTile attention_query_tile(const AttentionLengths& lengths, bool causal,
                                                              std::int32_t tile,
                                                              const AttentionWindow& window = {}) {
  const bool has_window = window.left != AttentionWindow::kAll;
  std::int32_t sequence = 0, behind = lengths.sequences;  // the last one that begins with this tile or before
  while (behind - sequence > 1) {
    const std::int32_t middle = (sequence + behind) / 2;
    const std::int32_t first_row = has_window ? attention_query_first(lengths, middle)
                                              : lengths.q[middle];  // the same, with a branch less
    if (attention_first_query_tile(first_row, middle) <= tile) {
      sequence = middle;
    } else {
      behind = middle;
    }
  }
  const AttentionSequence of = attention_sequence(lengths, sequence);
  const auto inside = tile - static_cast<std::int32_t>(attention_first_query_tile(of.query_first, sequence));
  const AttentionBackwardTiles tiles{of.queries, of.keys, causal};
  if (inside >= tiles.query_tiles()) return {0, 0, 0};
  const std::int32_t first = inside * kBackwardTileQueries, left = of.queries - first;
  const std::int32_t begin = of.query_first + first;
  const std::int32_t adds = has_window
                                ? AttentionBackwardWindowTiles{of.queries, of.keys, window}.adds(inside)
                                : tiles.adds(inside);
  return {begin, begin + (left < kBackwardTileQueries ? left : kBackwardTileQueries), adds};
}

/// The tasks that each sequence of a launch has, and in which order sequences come: those with most queries
/// first, for so many steps a task has. Within a sequence tasks follow each other as those of
/// AttentionBackwardTasks, and for the same reasons a task waits only for tasks that were taken before it.
/// With a causal mask all walk downwards: the tasks of a head follow each other at a distance of one step,
/// and those at the end of a sequence are its shortest ones. With a window: AttentionBackwardWindowTiles.
struct AttentionBackwardTaskList {
  using Slot = AttentionBackwardSlot;

  std::int32_t kv_heads, group;  ///< heads of keys, and how many of queries share one
  std::int32_t head_dim;
  bool causal;
  /// Both sides are kAll: there is none; else neither is, and `causal` is not read.
  AttentionWindow window = {};

  static MK_HOST_DEVICE std::int32_t size(const AttentionSequence& sequence) { return sequence.queries; }
  MK_HOST_DEVICE bool has_window() const { return window.left != AttentionWindow::kAll; }
  /// Tiles of keys of a sequence with queries that none of them sees: its first ones.
  MK_HOST_DEVICE std::int32_t unseen_tiles(const AttentionSequence& sequence) const {
    if (!has_window()) return 0;
    return AttentionBackwardWindowTiles{sequence.queries, sequence.keys, window}.first_key_tile(0);
  }
  /// Keys that no query sees have no task.
  MK_HOST_DEVICE std::int32_t tasks(const AttentionSequence& sequence) const {
    const std::int32_t key_tiles = AttentionBackwardTiles::key_tiles(sequence.keys) - unseen_tiles(sequence);
    return sequence.queries > 0 ? key_tiles * kv_heads : 0;
  }
  MK_HOST_DEVICE std::int32_t section_heads(const AttentionSequence& sequence) const {
    const std::int32_t key_tiles = AttentionBackwardTiles::key_tiles(sequence.keys) - unseen_tiles(sequence);
    const std::int32_t queries = sequence.queries > 1 ? sequence.queries : 1;
    return attention_section_heads(kv_heads, 1, attention_backward_query_bytes(group, queries, head_dim),
                                   attention_backward_fewest_heads(group > 1, key_tiles > 1 ? key_tiles : 1));
  }
  /// All but the tasks before it, of the slot of sequence number `number`.
  MK_HOST_DEVICE void describe(const AttentionSequence& sequence, std::int32_t number, Slot& slot) const {
    slot.sequence = sequence;
    slot.section_heads = section_heads(sequence);
    slot.first_tile = static_cast<std::int32_t>(attention_first_query_tile(sequence.query_first, number));
  }

  /// A task: a tile of keys of one head, and the tiles of queries that it walks, all counted from the first
  /// ones of its sequence.
  struct Place {
    std::int32_t kv_head, tile;
    AttentionBackwardWalk walk;
    /// Tiles of keys that add to each of these tiles of queries before this one does. With a window it is
    /// larger, by first_key_tile() of the tile of queries.
    std::int32_t turn;
  };
  /// Task number `inside` of the slot's.
  MK_HOST_DEVICE Place place(const AttentionSlot& slot, std::int32_t inside) const {
    const std::int32_t unseen = unseen_tiles(slot.sequence);
    const std::int32_t key_tiles = AttentionBackwardTiles::key_tiles(slot.sequence.keys) - unseen;
    const AttentionHeadTile at =
        attention_head_tile<std::int32_t>(inside, kv_heads, key_tiles, slot.section_heads,
                                          kv_heads % slot.section_heads, slot.section_heads * key_tiles);
    const std::int32_t turn = key_tiles - 1 - at.tile;  // its place in the order of the head's tasks
    if (has_window()) {
      const AttentionBackwardWindowTiles tiles{slot.sequence.queries, slot.sequence.keys, window};
      return {at.head, unseen + turn, tiles.walk(unseen + turn), unseen + turn};
    }
    const std::int32_t tile = causal ? turn : at.tile;
    const AttentionBackwardTiles tiles{slot.sequence.queries, slot.sequence.keys, causal};
    return {at.head, tile, tiles.walk(tile, causal), turn};
  }
};

}  // namespace mkernel::kernels

// Attention of sequences of different lengths: which lengths there may be, where a sequence lies, what its
// queries see, and in which order a persistent kernel takes the tiles. Pure functions, the same on host and
// device.
#pragma once

#include <cstdint>

#include "kernels/plan/attention_tasks.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// What the kernel has room for.
inline constexpr std::int32_t kMostSequences = 1024;

/// Lengths as a launch is given them: sequence s has rows q[s] .. q[s + 1] - 1 of the queries and rows
/// k[s] .. k[s + 1] - 1 of keys and values. q == nullptr: all sequences have `all_queries` and `all_keys`.
struct AttentionLengths {
  const std::int32_t* q;  ///< [sequences + 1]
  const std::int32_t* k;
  std::int32_t sequences;
  std::int32_t all_queries, all_keys;  ///< rows that there are
};

/// An entry of the lengths that is not what it must be, least .. most.
struct BadLength {
  std::int32_t number = -1;  ///< of the first one, those of the keys behind those of the queries; -1: none is
  std::int32_t least = 0, most = 0, value = 0;
};

/// Entries that can be bad.
MK_HOST_DEVICE inline std::int32_t attention_length_entries(const AttentionLengths& lengths) {
  return lengths.q == nullptr ? 0 : 2 * (lengths.sequences + 1);
}

/// Entry `number` alone, compared with the one before it.
MK_HOST_DEVICE inline BadLength check_attention_length(const AttentionLengths& lengths, std::int32_t number) {
  const std::int32_t of_each = lengths.sequences + 1;
  const bool of_keys = number >= of_each;
  const std::int32_t* entries = of_keys ? lengths.k : lengths.q;
  const std::int32_t index = of_keys ? number - of_each : number;
  const std::int32_t least = index == 0 ? 0 : entries[index - 1];
  const std::int32_t most = index == 0 ? 0 : of_keys ? lengths.all_keys : lengths.all_queries;
  const std::int32_t value = entries[index];
  if (value >= least && value <= most) return {};
  return {number, least, most, value};
}

/// Where a sequence lies in the rows of all.
struct AttentionSequence {
  std::int32_t query_first, queries, key_first, keys;
};

/// Of lengths none of which is bad: the first row of a sequence's queries.
MK_HOST_DEVICE inline std::int32_t attention_query_first(const AttentionLengths& lengths,
                                                         std::int32_t sequence) {
  return lengths.q == nullptr ? sequence * lengths.all_queries : lengths.q[sequence];
}
/// Likewise.
MK_HOST_DEVICE inline AttentionSequence attention_sequence(const AttentionLengths& lengths,
                                                           std::int32_t sequence) {
  if (lengths.q == nullptr) {
    const std::int32_t queries = lengths.all_queries, keys = lengths.all_keys;
    return {sequence * queries, queries, sequence * keys, keys};
  }
  const std::int32_t query = lengths.q[sequence], key = lengths.k[sequence];
  return {query, lengths.q[sequence + 1] - query, key, lengths.k[sequence + 1] - key};
}

/// Keys before and behind a query's own position that it sees. The last query of a sequence stands where its
/// last key does.
struct AttentionWindow {
  static constexpr std::int32_t kAll = -1;
  std::int32_t left = kAll, right = kAll;
};

/// Keys first .. end - 1: what the queries of a tile see together.
struct AttentionKeys {
  std::int32_t first, end;
};
/// Of queries `query` .. `query_end` - 1 of the sequence.
MK_HOST_DEVICE inline AttentionKeys attention_window_keys(const AttentionSequence& sequence,
                                                          const AttentionWindow& window, std::int32_t query,
                                                          std::int32_t query_end) {
  const std::int64_t ahead = std::int64_t{sequence.keys} - sequence.queries;
  std::int64_t first = 0, end = sequence.keys;
  if (window.left != AttentionWindow::kAll && query + ahead - window.left > 0)
    first = query + ahead - window.left;
  if (window.right != AttentionWindow::kAll && query_end + ahead + window.right < end)
    end = query_end + ahead + window.right;
  if (first >= end) return {0, 0};
  return {static_cast<std::int32_t>(first), static_cast<std::int32_t>(end)};
}

/// A sequence in the list of tasks.
struct AttentionSlot {
  AttentionSequence sequence;
  std::int32_t tasks_before;   ///< of the sequences before it in the list; a slot behind the last has all
  std::int32_t section_heads;  ///< attention_section_heads()
};

/// Whether sequence `a` comes before `b`: that of the larger size first, so that the tasks at the end of a
/// launch are short.
MK_HOST_DEVICE constexpr bool attention_comes_before(std::int32_t a, std::int32_t a_size, std::int32_t b,
                                                     std::int32_t b_size) {
  return a_size > b_size || (a_size == b_size && a < b);
}

/// The slot that has task number `task`, of `count` slots and the one behind them, which has more tasks
/// before it. `Slot`: AttentionSlot, or that of a backward pass.
template <class Slot>
MK_HOST_DEVICE std::int32_t attention_slot_of(const Slot* slots, std::int32_t count, std::int32_t task) {
  std::int32_t begin = 0, end = count;  // the last slot in [begin, end) with at most `task` tasks before it
  while (end - begin > 1) {
    const std::int32_t middle = (begin + end) / 2;
    if (slots[middle].tasks_before <= task) {
      begin = middle;
    } else {
      end = middle;
    }
  }
  return begin;
}

/// The tasks that each sequence of a launch has, and in which order sequences come.
struct AttentionTaskList {
  using Slot = AttentionSlot;

  std::int32_t heads, group;  ///< of queries, and how many share keys
  std::int32_t kv_bytes;      ///< a key and a value of one head

  /// Of two sequences that which has more comes first (attention_comes_before()).
  static MK_HOST_DEVICE std::int32_t size(const AttentionSequence& sequence) { return sequence.keys; }
  MK_HOST_DEVICE std::int32_t tasks(const AttentionSequence& sequence) const {
    return attention_query_tiles(sequence.queries) * heads;
  }
  MK_HOST_DEVICE std::int32_t section_heads(const AttentionSequence& sequence) const {
    const std::int64_t keys = sequence.keys > 1 ? sequence.keys : 1;
    return attention_section_heads(heads / group, group, keys * kv_bytes);
  }
  /// All but the tasks before it, of the slot of sequence number `number`.
  MK_HOST_DEVICE void describe(const AttentionSequence& sequence, std::int32_t /*number*/, Slot& slot) const {
    slot.sequence = sequence;
    slot.section_heads = section_heads(sequence);
  }
};

/// Task number `inside` of the slot's, as those of AttentionTasks follow each other.
MK_HOST_DEVICE inline AttentionHeadTile attention_slot_tile(const AttentionSlot& slot, std::int32_t heads,
                                                            std::int32_t inside) {
  const std::int32_t tiles = attention_query_tiles(slot.sequence.queries);
  return attention_head_tile<std::int32_t>(inside, heads, tiles, slot.section_heads,
                                           heads % slot.section_heads, slot.section_heads * tiles);
}

}  // namespace mkernel::kernels

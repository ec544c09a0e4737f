// Ring attention over sequences of different lengths: which rows of a sequence a rank holds, in which tiles
// its queries are taken, and which keys of every rank they see. Pure functions, the same on host and device.
//
// Every rank holds equally many rows of a sequence, one sequence behind the other, so the lengths of a rank
// are those of all. With a causal mask these rows are two parts of equal size, zigzag as in plan/positions.h:
// rank r of w has parts r and 2 w - 1 - r of 2 w. Without a mask they are part r of w.
//
// What travels does not depend on the lengths: all rows of a rank go to all others, as those of one sequence
// without a mask do (plan/kv_gather_plan.h). The lengths only say which of them a query meets, so a rank with
// wrong lengths neither waits for ever nor lets others wait.
#pragma once

#include <cstdint>

#include "kernels/plan/attention_sequences.h"
#include "kernels/plan/attention_tasks.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Of a rank's rows of a sequence.
MK_HOST_DEVICE constexpr std::int32_t ring_parts(bool causal) {
  return causal ? 2 : 1;
}

/// Entries of `lengths` that can be bad: queries and keys have the same ones.
MK_HOST_DEVICE inline std::int32_t ring_length_entries(const AttentionLengths& lengths) {
  return lengths.sequences + 1;
}

/// Entry `number` alone. It is also bad when the sequence that ends there has no two parts of the same size,
/// but must have; then the entry lies within its limits.
MK_HOST_DEVICE inline BadLength check_ring_length(const AttentionLengths& lengths, bool causal,
                                                  std::int32_t number) {
  const BadLength bad = check_attention_length(lengths, number);
  if (bad.number >= 0 || number == 0) return bad;
  const std::int32_t before = lengths.q[number - 1], value = lengths.q[number];
  if ((value - before) % ring_parts(causal) == 0) return {};
  return {number, before, lengths.all_queries, value};
}

/// Tiles of a head that has so many rows of a sequence: no tile spans two parts.
MK_HOST_DEVICE inline std::int32_t ring_tiles(std::int32_t rows, bool causal) {
  return ring_parts(causal) * attention_query_tiles(rows / ring_parts(causal));
}

/// Queries of a rank that are computed together: rows query .. query_end - 1 of its rows of the sequence.
struct RingTile {
  std::int32_t part;  ///< that they lie in
  std::int32_t query, query_end;

  /// Keys of the own rank that the first of them sees, and the last one; both count from the rank's first row
  /// of the sequence on, which has `rows`.
  MK_HOST_DEVICE std::int32_t visible(std::int32_t rows, bool causal) const {
    return causal ? query + 1 : rows;
  }
  MK_HOST_DEVICE std::int32_t keys(std::int32_t rows, bool causal) const { return causal ? query_end : rows; }
};

/// Tile `tile` of ring_tiles(): those of part 0 come first.
MK_HOST_DEVICE inline RingTile ring_tile(std::int32_t rows, bool causal, std::int32_t tile) {
  const std::int32_t part_rows = rows / ring_parts(causal), of_part = attention_query_tiles(part_rows);
  const std::int32_t part = tile < of_part ? 0 : 1;
  const std::int32_t end = (part + 1) * part_rows;
  const std::int32_t query = part * part_rows + (tile - part * of_part) * kAttentionTileQueries;
  return {part, query, query + kAttentionTileQueries < end ? query + kAttentionTileQueries : end};
}

/// Keys of another rank that the queries of part `part` see, all of them: so many from its first row of the
/// sequence on. `part_rows`: rows of a part. `before`: the other rank's number is below that of the queries'.
MK_HOST_DEVICE constexpr std::int32_t ring_keys(std::int32_t part_rows, bool causal, std::int32_t part,
                                                bool before) {
  if (!causal) return part_rows;
  if (part == 0) return before ? part_rows : 0;
  return before ? part_rows : 2 * part_rows;
}

/// The list of the tasks of one head (AttentionTaskList): the longest sequences come first.
struct RingTaskList {
  using Slot = AttentionSlot;

  bool causal;
  std::int32_t section_heads;  ///< heads of queries in a section, the same of all sequences

  static MK_HOST_DEVICE std::int32_t size(const AttentionSequence& sequence) { return sequence.keys; }
  MK_HOST_DEVICE std::int32_t tasks(const AttentionSequence& sequence) const {
    return ring_tiles(sequence.queries, causal);
  }
  MK_HOST_DEVICE void describe(const AttentionSequence& sequence, std::int32_t /*number*/, Slot& slot) const {
    slot.sequence = sequence;
    slot.section_heads = section_heads;
  }
};

/// What a task computes: a tile of a sequence, of one head.
struct RingPlace {
  std::int32_t slot;  ///< of the sequence
  std::int32_t head, tile;
};

/// Tasks of a launch. `slots`: of `count` sequences, as RingTaskList says.
MK_HOST_DEVICE inline std::int32_t ring_tasks(const AttentionSlot* slots, std::int32_t count,
                                              std::int32_t heads) {
  return slots[count].tasks_before * heads;
}

/// Heads come in sections, as keys and values do, and those of a section share the L2 (attention_tasks.h).
/// Within a section the sequences follow each other, the longest first, and of each the last queries come
/// first, of all heads of the section.
MK_HOST_DEVICE inline RingPlace ring_place(const AttentionSlot* slots, std::int32_t count, std::int32_t heads,
                                           bool causal, std::int32_t task) {
  const std::int32_t tiles = slots[count].tasks_before, section_heads = slots[0].section_heads;
  const AttentionHeadTile at = attention_head_tile<std::int32_t>(
      task, heads, tiles, section_heads, heads % section_heads, section_heads * tiles);
  const std::int32_t number = tiles - 1 - at.tile;
  const std::int32_t slot = attention_slot_of(slots, count, number);
  const std::int32_t behind = number - slots[slot].tasks_before;
  return {slot, at.head, ring_tiles(slots[slot].sequence.queries, causal) - 1 - behind};
}

}  // namespace mkernel::kernels

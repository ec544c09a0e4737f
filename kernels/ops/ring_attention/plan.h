// Plan of ring attention, as far as both executors have the same: who gathers what from whom, and the tiles
// of queries.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/plan/attention_sequences.h"
#include "kernels/plan/attention_tasks.h"
#include "kernels/plan/kv_gather_plan.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Pure; the same on every rank but for what is of this rank. All keys and values of all ranks are gathered,
/// in a slab per source, one head after the other, while every tile of queries sweeps the whole sequence in
/// the order of KvGatherPlan::source(): own ones first, which are there; then those of the node; then those
/// of other nodes, one node after the other.
///
/// Of packed sequences all rows of all ranks are gathered, in one part, with and without a mask: their
/// lengths are known in a launch alone, and say which rows a query meets (plan/ring_sequences.h). `tasks` are
/// then those of sequences that are all as long as they are on average: an estimate.
struct RingPlan {
  AttentionShape shape;  ///< with `keys` filled in
  KvGatherPlan gather;
  AttentionTasks tasks;          ///< tiles of part 0 of the own positions, then those of part 1
  std::int32_t first_tiles = 0;  ///< of part 0

  /// kInvalidArgument naming field, value and limit. `kind`: kRingAttention or kRingAttentionBackward.
  static Status check(OpKind kind, const AttentionShape& shape, const Topology& topology);
  /// Of what check() lets pass. A head is one chunk, pushed by one thread or CTA.
  static RingPlan make(const AttentionShape& shape, const Topology& topology, std::uint32_t rank);

  /// Lanes of the group's channels, between rail peers only.
  std::uint32_t lanes() const { return gather.rails() > 0 ? 1 : 0; }
  /// Heads of queries that share keys and values.
  std::int64_t group() const { return shape.heads / shape.kv_heads; }
  /// Keys and values of one head, of all ranks.
  std::int64_t kv_bytes() const;
  /// Where a part of the own positions begins.
  std::int32_t part_begin(int part) const { return part == 0 ? 0 : gather.part_rows[gather.rank][0]; }
  /// Of the rank that holds most.
  std::int32_t most_positions() const;
  /// Rows of the own positions that tile `tile` of the queries has.
  Range query_rows(std::int32_t tile) const;

  /// kInvalidArgument for an operand that is null, and for lengths where none are wanted.
  Status check(const AttentionArguments& arguments) const;

  bool packed() const { return shape.max_sequences > 0; }
  /// Of packed sequences: rows that a rank holds of one of them on average, at least one of each part.
  std::int32_t average_rows() const;
  /// Of packed sequences: the lengths of a launch. Queries and keys have the same ones.
  AttentionLengths lengths(const AttentionArguments& arguments) const;
  /// OK without a bad length; else kInvalidArgument.
  Status refuse(const BadLength& bad) const;
  /// Heads of queries in a section (ring_place()).
  std::int32_t section_heads() const;
  /// The list of tasks of one head, of lengths that are good, with a slot behind the last one.
  std::vector<AttentionSlot> slots(const AttentionLengths& lengths) const;
};

}  // namespace mkernel::kernels

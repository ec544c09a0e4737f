// Plan of ring attention, as far as both executors have the same: who gathers what from whom, and the tiles
// of queries.
#pragma once

#include <cstdint>

#include "kernels/plan/attention_tasks.h"
#include "kernels/plan/kv_gather_plan.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Pure; the same on every rank but for what is of this rank. All keys and values of all ranks are gathered,
/// in a slab per source, one head after the other, while every tile of queries sweeps the whole sequence in
/// the order of KvGatherPlan::source(): own ones first, which are there; then those of the node; then those
/// of other nodes, one node after the other.
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
  /// Where a part of the own positions begins.
  std::int32_t part_begin(int part) const { return part == 0 ? 0 : gather.part_rows[gather.rank][0]; }
  /// Of the rank that holds most.
  std::int32_t most_positions() const;
  /// Rows of the own positions that tile `tile` of the queries has.
  Range query_rows(std::int32_t tile) const;
};

}  // namespace mkernel::kernels

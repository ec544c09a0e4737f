// Plan of ring attention: who holds which positions, in which order blocks travel and are attended to, where
// they lie and which counts say so. Pure and the same on every rank.
//
// Key/value blocks travel in pages: consecutive rows of one batch entry, the keys and then the values, so
// that a page is one put and can be attended to as soon as it is there. Rank (n, g) sends to (n + 1, g); at
// step s it holds, in slot (launch * nodes + s) % 2, the block of rank (n - s, g). Every rank of the node
// reads it there: host memory only (README.md), where a NIC's writes are coherent with every core, so whoever
// acquires `received` sees what its writer saw when it acquired the arrival count.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/signal.h"
#include "kernels/plan/positions.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Consecutive rows of one batch entry of a block.
struct KvPage {
  std::int64_t batch = 0;
  Range rows;                                                  ///< of the block
  std::uint64_t offset = 0;                                    ///< of the keys, within the slot
  std::uint64_t bytes = 0;                                     ///< keys and values
  std::uint64_t values() const { return offset + bytes / 2; }  ///< of the values, within the slot
};

/// One tile of query rows of one head: the unit a compute thread owns for a whole launch.
struct QueryTile {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  Range rows;  ///< of this rank's block; consecutive positions
};

/// Byte offsets within the symmetric workspace of one rank: signal words, then two slots.
struct RingWorkspace {
  std::uint32_t local_ranks = 0;
  std::uint64_t slot_bytes = 0;

  static constexpr std::uint64_t kPage = 4096;
  std::uint64_t loaded() const { return word(0); }    ///< pages of step 0 in place, over all launches
  std::uint64_t received() const { return word(1); }  ///< pages of later steps in place, over all launches
  /// Steps of this rank's slots that local rank `reader` is done with, over all launches.
  std::uint64_t consumed(std::uint32_t reader) const { return word(2 + reader); }
  std::uint64_t slot(std::uint64_t index) const { return slots_begin() + index * slot_bytes; }
  std::uint64_t bytes() const { return slot(2); }

 private:
  static std::uint64_t word(std::uint64_t index) { return index * sizeof(SignalWord); }
  std::uint64_t slots_begin() const { return (word(2 + local_ranks) + kPage - 1) / kPage * kPage; }
};

class RingAttentionPlan {
 public:
  static constexpr std::uint32_t kDataLane = 0;    ///< pages, to the next node
  static constexpr std::uint32_t kCreditLane = 1;  ///< bare signals, to the previous node
  static constexpr std::uint32_t kLanes = 2;

  /// Refuses impossible shapes naming field, value and limit.
  static Result<RingAttentionPlan> make(const AttentionShape& shape, const Topology& topology);

  const AttentionShape& shape() const { return shape_; }
  const Topology& topology() const { return topology_; }
  std::string signature() const;
  Requirements requirements() const;
  const RingWorkspace& workspace() const { return workspace_; }

  // The ring.
  std::uint32_t steps() const { return topology_.nodes(); }
  std::uint32_t next(std::uint32_t rank) const { return neighbour(rank, 1); }
  std::uint32_t previous(std::uint32_t rank) const { return neighbour(rank, topology_.nodes() - 1); }
  /// Whose block `rank` holds at `step`.
  std::uint32_t origin(std::uint32_t rank, std::uint32_t step) const {
    return neighbour(rank, topology_.nodes() - step);
  }
  /// Which local rank's slot a rank reads as number `turn` of a step: its own first.
  std::uint32_t reads(std::uint32_t local, std::uint32_t turn) const {
    return (local + turn) % topology_.ranks_per_node();
  }

  // Blocks, pages, tiles.
  Positions positions(std::uint32_t rank) const {
    return held_positions(shape_.sequence, shape_.causal, topology_.world(), rank);
  }
  std::uint64_t pages(std::uint32_t rank) const;  ///< of the block that `rank` brings
  KvPage page(std::uint32_t rank, std::uint64_t index) const;
  std::vector<QueryTile> tiles(std::uint32_t rank) const;

  // Counts of `rank` within one launch; over all launches they add up.
  /// Pages that `rank` holds at the steps [1, step): what the word `received` grows by until `step` begins.
  std::uint64_t received_before(std::uint32_t rank, std::uint32_t step) const;
  /// Pages that `rank` sends on during the steps [0, step).
  std::uint64_t sent_before(std::uint32_t rank, std::uint32_t step) const;
  std::uint64_t credits() const { return topology_.nodes() - 1; }  ///< one per step that receives

 private:
  RingAttentionPlan(const AttentionShape& shape, const Topology& topology);
  std::uint32_t neighbour(std::uint32_t rank, std::uint32_t distance) const;
  std::uint64_t row_bytes() const;  ///< keys or values of one position

  AttentionShape shape_;
  Topology topology_;
  std::int64_t page_rows_ = 0;
  RingWorkspace workspace_;
};

}  // namespace mkernel::kernels

// Plan of the all-gather of finished sums: an owner pushes every unit of its rows that it has summed to every
// other rank of its node, and puts chunks of them to its rail peers, who push them on in their nodes. Pure;
// the same on every rank, on host and device.
#pragma once

#include <cstdint>

#include "kernels/plan/cuts.h"
#include "kernels/plan/reduce_units.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Words in the operation's own workspace from `words_begin` on, data in the half of the lent one that a
/// launch uses from `begin` on:
///   summed[owner][unit]   64-bit words: launches for which the owner's unit has come
///   sums[owner][unit]     units, each [unit rows, tile columns], 16 bits an element; what lies beyond c is
///                         not written
/// A unit is one of ReduceUnits: what one warp sums, pushes and tells by itself. Over several nodes the sums
/// are packed as PutPartialsPlan's units are, travel in the same chunks, and lie at the same offset where
/// they are put from (a rank's own, not used on one node) and where they arrive; those of rail peers have no
/// words but arrival counts. A launch ends only when this rank has copied all sums.
///
/// On one node where owners share tiles (TileReducePlan::marks_sums()), kernels do without words. The sums
/// then lie in the operation's own workspace behind them, which nobody else writes, and say themselves that
/// they have come, by the rule of PushReducePlan's marked slots:
///   marked[owner][unit]    units as above; an element that has not come is PushReducePlan::kMark
/// Each rank fills them with the mark before any rank launches, and a copy leaves the mark. One half is
/// enough: an owner stores a sum when it has seen a word or a summand of this launch from every rank
/// (PushReducePlan), and each rank wrote that behind all marks of its launch before.
struct PushSumsPlan {
  static constexpr std::uint64_t kUnitBytes = kReduceUnitElements * 2;

  std::uint64_t words_begin = 0;
  std::uint64_t begin = 0;  ///< a multiple of 128
  std::int32_t world = 1;
  std::int32_t units = 0;  ///< of every owner; none when every rank sums all rows (PushReducePlan::to_all)

  /// Value of a unit's word from which the unit of launch `epoch` is there.
  static MK_HOST_DEVICE std::uint64_t count(std::uint64_t epoch) { return epoch + 1; }

  MK_HOST_DEVICE std::uint64_t summed_offset(std::int32_t owner) const {
    return words_begin + static_cast<std::uint64_t>(owner) * units * 8;
  }
  MK_HOST_DEVICE std::uint64_t sums_offset(std::int32_t owner) const {
    return begin + static_cast<std::uint64_t>(owner) * units * kUnitBytes;
  }
  MK_HOST_DEVICE std::uint64_t words_end() const { return summed_offset(world); }
  MK_HOST_DEVICE std::uint64_t end() const { return sums_offset(world); }

  MK_HOST_DEVICE std::uint64_t marked_offset(std::int32_t owner) const {
    return whole_lines(words_end()) + static_cast<std::uint64_t>(owner) * units * kUnitBytes;
  }
  MK_HOST_DEVICE std::uint64_t marked_end() const { return marked_offset(world); }
  MK_HOST_DEVICE std::uint64_t marked_bytes() const { return marked_end() - marked_offset(0); }
};

}  // namespace mkernel::kernels

// Plan of the sums of gradients of keys and values: every rank stores its partial ones into slots of their
// owner, which adds them up in the order of ranks. Pure; the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/plan/attention_backward_tasks.h"
#include "kernels/plan/kv_gather_plan.h"
#include "kernels/plan/ring_backward_tasks.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Behind what KvGatherPlan lays out, likewise:
///   arrived[slot][unit]  64-bit words: launches whose partial gradients of the unit have come
///   slot[slot][unit]     a part, in the io type: [tensor][box][kRows, 64] as the copy engine swizzles boxes;
///                        of the cpu executor [tensor][kRows, head_dim], in as much room
/// On one node a slot is that of a writer, by rank. Over several nodes writers store at their own node, at
/// the rail peer of the owner; slots are then by the distance of the owner's node behind this one, and by the
/// local rank of the writer. So those of distance 0 are for own keys.
///
/// A unit is what a warpgroup of the backward body computes: up to 64 keys, which follow each other in one
/// part of the owner's positions, of one head. A box is 64 columns. A writer sends no unit that none of its
/// queries sees; owners know which these are (RingBackwardTasks::is_seen()), and wait for all others. The
/// owner's own partial gradients take the same way.
///
/// What the halves rest on (base/lent_workspace.h): a launch ends when all units that are sent to its rank
/// are summed, so none is on its way to it any more.
struct KeyPartialsPlan {
  static constexpr std::int32_t kRows = kBackwardTileKeys / 2;
  static constexpr std::int32_t kTensors = KvGatherPlan::kTensors;
  static constexpr std::int32_t kBoxBytes = kRows * 128;
  static constexpr std::uint64_t kAlignment = 128;

  std::int32_t boxes = 1;                        ///< of a tensor
  std::int32_t max_units = 0;                    ///< of the owner that has most
  std::int32_t slots = 1;                        ///< of a unit
  std::uint64_t first_word = 0, first_byte = 0;  ///< where the gather's end

  KeyPartialsPlan() = default;
  KeyPartialsPlan(const KvGatherPlan& gather, std::int32_t head_dim)
      : boxes((head_dim + 63) / 64),
        slots(gather.world),
        first_word(gather.word_bytes()),
        first_byte((gather.data_bytes() + kAlignment - 1) / kAlignment * kAlignment) {
    for (std::int32_t owner = 0; owner < gather.world; ++owner) {
      const std::int32_t units = gather.heads * units_of(gather, owner);
      max_units = max_units < units ? units : max_units;
    }
  }

  /// Of one head.
  static MK_HOST_DEVICE std::int32_t units_of(const KvGatherPlan& gather, std::int32_t owner,
                                              std::int32_t part) {
    return (gather.part_rows[owner][part] + kRows - 1) / kRows;
  }
  /// Of one head of both parts.
  static MK_HOST_DEVICE std::int32_t units_of(const KvGatherPlan& gather, std::int32_t owner) {
    return units_of(gather, owner, 0) + units_of(gather, owner, 1);
  }
  /// Which holds row `row` of the part.
  static MK_HOST_DEVICE std::int32_t unit(const KvGatherPlan& gather, std::int32_t owner, std::int32_t part,
                                          std::int32_t head, std::int32_t row) {
    const std::int32_t first = units_of(gather, owner, 0);
    return head * (first + units_of(gather, owner, 1)) + (part == 0 ? 0 : first) + row / kRows;
  }

  MK_HOST_DEVICE std::uint64_t unit_bytes() const {
    return static_cast<std::uint64_t>(kTensors * boxes) * kBoxBytes;
  }
  MK_HOST_DEVICE std::uint64_t word_offset(std::int32_t slot, std::int32_t unit) const {
    return first_word + 8 * (static_cast<std::uint64_t>(slot) * max_units + unit);
  }
  MK_HOST_DEVICE std::uint64_t word_bytes() const { return word_offset(slots, 0); }
  MK_HOST_DEVICE std::uint64_t slot_offset(std::int32_t slot, std::int32_t unit) const {
    return first_byte + (static_cast<std::uint64_t>(slot) * max_units + unit) * unit_bytes();
  }
  MK_HOST_DEVICE std::uint64_t data_bytes() const { return slot_offset(slots, 0); }

  /// Value of a unit's word from which that of launch `epoch` is there.
  static MK_HOST_DEVICE std::uint64_t count(std::uint64_t epoch) { return epoch + 1; }
};

}  // namespace mkernel::kernels

// Plan of the all-gather of finished sums: an owner pushes every unit of its rows that it has summed to every
// other rank of its node, and puts chunks of them to its rail peers, who push them on in their nodes. Pure;
// the same on every rank, on host and device.
#pragma once

#include <cstdint>

#include "kernels/plan/reduce_units.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Its part of the symmetric workspace, from `begin` on:
///   summed[owner][unit]              64-bit words: launches for which the owner's unit has come
///   sums[owner][unit]                units, each [unit rows, tile columns], 16 bits an element; what lies
///                                    beyond c is not written
/// A unit is one of ReduceUnits: what one warp sums, pushes and tells by itself. Over several nodes the sums
/// are packed as PutPartialsPlan's units are, travel in the same chunks, and lie at the same offset where
/// they are put from (a rank's own, not used on one node) and where they arrive; those of rail peers have no
/// words but arrival counts.
///
/// No launch writes what another one still reads. A sum of launch e + 1 needs a tile of every rank, so all
/// ranks have ended launch e by then; and a launch ends only when this rank has copied all sums and its puts
/// are completed. For the same reason its slots and partials have one parity.
struct PushSumsPlan {
  static constexpr std::uint64_t kUnitBytes = kReduceUnitElements * 2;

  std::uint64_t begin = 0;  ///< a multiple of 128
  std::int32_t world = 1;
  std::int32_t units = 0;  ///< of every owner

  /// Value of a unit's word from which the unit of launch `epoch` is there.
  static MK_HOST_DEVICE std::uint64_t count(std::uint64_t epoch) { return epoch + 1; }

  MK_HOST_DEVICE std::uint64_t summed_offset(std::int32_t owner) const {
    return begin + static_cast<std::uint64_t>(owner) * units * 8;
  }
  MK_HOST_DEVICE std::uint64_t sums_offset(std::int32_t owner) const {
    const std::uint64_t words = (summed_offset(world) + 127) / 128 * 128;
    return words + static_cast<std::uint64_t>(owner) * units * kUnitBytes;
  }
  MK_HOST_DEVICE std::uint64_t end() const { return sums_offset(world); }
};

}  // namespace mkernel::kernels

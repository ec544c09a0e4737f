// Which work rings, and so which rails, the lanes of a rank go over. Pure functions, the same in client,
// kernel and daemon.
#pragma once

#include <cstdint>

#include "proto/abi/host_device.h"

namespace mkernel::abi {

/// The rings of one rank. Lane l of every channel that begins at the rank uses ring(l), at both ends: proxy r
/// of a node talks to proxy r of every other.
struct RingShare {
  std::uint32_t rings = 1;  ///< bit r: ring r is one of them; not 0

  /// `chosen`: those near the rank's GPU. Where it is 0 (the rank has no GPU, or none of its rails is near)
  /// the rings are dealt to the ranks of a node in rounds, as rails are to GPUs
  /// (daemon/topology/placement.h): of G ranks, rank i has the rings i, i + G, i + 2 G, ...; with fewer rings
  /// than ranks they share. `local_rank` of `local_ranks` on a node with `count` (1 to kMaxRings) rings.
  static constexpr RingShare of(std::uint32_t chosen, std::uint32_t local_rank, std::uint32_t local_ranks,
                                std::uint32_t count) {
    if (chosen != 0) return {chosen};
    std::uint32_t dealt = 0;
    for (std::uint32_t ring = local_rank % count; ring < count; ring += local_ranks)
      dealt |= std::uint32_t{1} << ring;
    return {dealt};
  }

  MK_HOST_DEVICE constexpr std::uint32_t count() const { return ones_in(rings); }
  MK_HOST_DEVICE constexpr std::uint32_t ring(std::uint32_t lane) const {
    std::uint32_t rest = rings;
    for (std::uint32_t skip = lane % count(); skip > 0; --skip) rest &= rest - 1;  // without its lowest one
    return ones_in((rest - 1) & ~rest);  // of the zeros below the lowest one
  }

 private:
  MK_HOST_DEVICE static constexpr std::uint32_t ones_in(std::uint32_t word) {
    word -= (word >> 1) & 0x55555555U;
    word = (word & 0x33333333U) + ((word >> 2) & 0x33333333U);
    return (((word + (word >> 4)) & 0x0f0f0f0fU) * 0x01010101U) >> 24;
  }
};

}  // namespace mkernel::abi

// Which work rings, and so which rails, the lanes of a rank go over. Pure functions, the same in client,
// kernel and daemon.
#pragma once

#include <cstdint>

#include "proto/abi/host_device.h"

namespace mkernel::abi {

/// The rings of one rank: `first`, `first + step`, ... `count` of them. Lane l of every channel that begins
/// at the rank uses ring(l), at both ends: proxy r of a node talks to proxy r of every other.
///
/// The rings are dealt to the ranks of a node in rounds, as rails are to GPUs (daemon/topology/placement.h):
/// of G ranks, rank i has the rings i, i + G, i + 2 G, ...; with fewer rings than ranks they share.
struct RingShare {
  std::uint32_t first = 0;
  std::uint32_t step = 1;
  std::uint32_t count = 1;

  /// `local_rank` of `local_ranks` on a node with `rings` (>= 1) rings.
  static constexpr RingShare of(std::uint32_t local_rank, std::uint32_t local_ranks, std::uint32_t rings) {
    if (local_rank >= rings) return {local_rank % rings, 1, 1};
    return {local_rank, local_ranks, (rings - local_rank + local_ranks - 1) / local_ranks};
  }
  MK_HOST_DEVICE constexpr std::uint32_t ring(std::uint32_t lane) const {
    return first + lane % count * step;
  }
};

}  // namespace mkernel::abi

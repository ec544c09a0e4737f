// What a kernel reads in host memory. One warp of the grid polls it and copies what it sees into GPU memory:
// more readers would slow the copies of everybody else on the bus. See cuda/launch/poller.cuh.
#pragma once

#include <cstdint>

#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Abort words of the session and the group, in host memory registered with CUDA; null when not watched.
struct HostWatch {
  const std::uint32_t* session_abort = nullptr;
  const std::uint32_t* group_abort = nullptr;
};

/// Counts that the poller copies into GPU memory: arrivals and completions of `lanes` lanes with `peers`
/// ranks. Word i of `base` and `seen` is arrivals [peer][lane] for i < peers * lanes, then completions
/// [peer][lane].
struct PolledCounts {
  const std::uint64_t* arrivals = nullptr;   ///< host memory: of the first lane with rank 0
  const std::uint64_t* completed = nullptr;  ///< host memory, likewise
  const std::uint64_t* base = nullptr;       ///< GPU memory: where the counts stood at the start
  std::uint64_t* seen = nullptr;             ///< GPU memory: counts since then; written by the poller alone
  std::uint32_t peers = 0;
  std::uint32_t lanes = 0;
  std::uint32_t stride = 0;  ///< words from one rank to the next in host memory

  MK_HOST_DEVICE constexpr std::uint32_t words() const { return 2 * peers * lanes; }
  MK_HOST_DEVICE constexpr std::uint32_t arrivals_index(std::uint32_t peer, std::uint32_t lane) const {
    return peer * lanes + lane;
  }
  MK_HOST_DEVICE constexpr std::uint32_t completed_index(std::uint32_t peer, std::uint32_t lane) const {
    return (peers + peer) * lanes + lane;
  }
  /// Where word i comes from.
  MK_HOST_DEVICE constexpr const std::uint64_t* source(std::uint32_t i) const {
    const std::uint32_t row = i / lanes, lane = i % lanes;
    return row < peers ? arrivals + row * stride + lane : completed + (row - peers) * stride + lane;
  }
};

}  // namespace mkernel::kernels

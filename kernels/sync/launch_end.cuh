// How a launch ends: every CTA counts itself out, CTA 0 waits for the others and opens the next epoch. Counts
// only grow; nothing is reset, so a launch can be replayed by a graph.
#pragma once

#include <cstdint>

#include "kernels/ptx/global.cuh"
#include "kernels/sync/host_watch.h"
#include "kernels/sync/launch_control.h"

namespace mkernel::kernels {

/// All threads of any CTA but 0, as the last thing they do.
__device__ __forceinline__ void end_cta(LaunchControl& control) {
  __syncthreads();
  if (threadIdx.x == 0) ptx::red_add_release_gpu(&control.exited, 1ULL);
}

/// One thread of CTA 0: until every other CTA has ended, an abort that the host sees becomes one that the
/// kernel sees. Needs no deadline: the waits of the other CTAs have theirs.
__device__ __forceinline__ void watch_host(LaunchControl& control, std::uint64_t epoch,
                                           const HostWatch& host) {
  constexpr unsigned kPauseNs = 1000;
  const std::uint64_t all_ended = (epoch + 1) * (gridDim.x - 1);
  const auto set = [](const std::uint32_t* word) {
    return word != nullptr && ptx::ld_acquire_sys(word) != 0;
  };
  while (ptx::ld_acquire_gpu(&control.exited) < all_ended) {
    if (set(host.session_abort) || set(host.group_abort)) ptx::st_release_gpu(&control.abort, 1U);
    __nanosleep(kPauseNs);
  }
}

/// All threads of CTA 0, after watch_host() in one of them.
__device__ __forceinline__ void end_launch(LaunchControl& control, std::uint64_t epoch) {
  __syncthreads();
  if (threadIdx.x == 0) control.epoch = epoch + 1;
}

}  // namespace mkernel::kernels

// How a launch ends: every CTA counts itself out, CTA 0 waits for the others (sync/relay.cuh) and opens the
// next epoch. Counts only grow; nothing is reset, so a launch can be replayed by a graph, and launches may
// differ in their numbers of CTAs.
#pragma once

#include <cstdint>

#include "kernels/ptx/global.cuh"
#include "kernels/sync/grid.cuh"
#include "kernels/sync/launch_control.h"
#include "kernels/sync/relay.cuh"

namespace mkernel::kernels {

/// All threads of any CTA but 0, as the last thing they do.
__device__ __forceinline__ void end_cta(LaunchControl& control) {
  __syncthreads();
  if (thread_index() == 0) ptx::red_add_release_gpu(&control.exited, 1ULL);
}

/// All threads of CTA 0, after relay_host() in one of its warps: nobody else is there any more.
__device__ __forceinline__ void end_launch(LaunchControl& control, std::uint64_t epoch) {
  __syncthreads();
  if (thread_index() != 0) return;
  control.exited_before = ptx::ld_relaxed_gpu(&control.exited);
  control.met_before = ptx::ld_relaxed_gpu(&control.met);
  control.epoch = epoch + 1;
}

}  // namespace mkernel::kernels

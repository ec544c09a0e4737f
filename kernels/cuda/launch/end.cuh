// How a launch ends: every CTA counts itself out, CTA 0 waits for the others (cuda/launch/relay.cuh) and
// opens the next epoch. Counts only grow; nothing is reset, so a launch can be replayed by a graph, and
// launches may differ in their numbers of CTAs.
//
// A launch that failed stops those that are queued behind it. They must not push, put or count anything: with
// buffers of two parities, whoever is in launch e + 2 has seen that every rank is done with launch e, and
// that holds only as long as no launch fails. A slower rank would compute launch e from what launch e + 2
// left.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch/relay.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/sync/grid.cuh"
#include "kernels/cuda/sync/launch_control.h"

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
  if (ptx::ld_acquire_gpu(&control.abort) != 0) control.stopped = 1;
  control.exited_before = ptx::ld_relaxed_gpu(&control.exited);
  control.met_before = ptx::ld_relaxed_gpu(&control.met);
  control.epoch = epoch + 1;
}

/// All threads of every CTA of a launch that is stopped (LaunchControl::stopped), instead of everything else.
/// Nobody in it waits for a count of the host's, so the relay hands none on.
__device__ __forceinline__ void count_out(LaunchControl& control) {
  if (cta_index() != 0) return end_cta(control);
  const std::uint64_t epoch = control.epoch;
  if (thread_index() < 32) relay_host(control, HostWatch{}, RelayedCounts{}, cta_count() - 1);
  end_launch(control, epoch);
}

}  // namespace mkernel::kernels

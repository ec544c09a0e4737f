// How a launch ends: every CTA counts itself out, CTA 0 waits for the others (cuda/launch/poller.cuh) and
// opens the next epoch. Counts only grow; nothing is reset, so a launch can be replayed by a graph, and
// launches may differ in their numbers of CTAs.
//
// A launch that failed stops those that are queued behind it, also of other operations that share its lent
// workspace (base/lent_workspace.h). They must not push, put or count anything: that whoever is in launch
// g + 2 has seen every rank end launch g holds only as long as no launch fails. A slower rank would compute
// launch g from what launch g + 2 left.
#pragma once

#include <cstdint>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/launch/poller.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/sync/launch_control.h"
#include "kernels/cuda/sync/thread_group.cuh"

namespace mkernel::kernels {

/// All threads of any CTA but 0, as the last thing they do.
__device__ __forceinline__ void end_cta(LaunchControl& control) {
  __syncthreads();
  if (thread_index() == 0) ptx::red_add_release_gpu(&control.exited, 1ULL);
}

/// What the counts were when a launch began: they change only when every CTA has ended.
struct LaunchBegin {
  std::uint64_t epoch;
  std::uint64_t turn = 0;  ///< of the lent workspace

  __device__ __forceinline__ LaunchBegin(const LaunchControl& control, const LentControl* lent)
      : epoch(control.epoch) {
    if (lent != nullptr) turn = lent->launches;
  }
};

/// All threads of CTA 0, after poll_host() in one of its warps: nobody else is there any more.
__device__ __forceinline__ void end_launch(LaunchControl& control, LentControl* lent,
                                           const LaunchBegin& begin) {
  __syncthreads();
  if (thread_index() != 0) return;
  if (lent != nullptr && ptx::ld_relaxed_gpu(&lent->launches) != begin.turn) {
    report_failed_wait(control, {DeviceRole::kPoller, DeviceTag::kTurn, -1, 0}, begin.turn,
                       ptx::ld_relaxed_gpu(&lent->launches), 0);
  }
  const bool failed = ptx::ld_acquire_gpu(&control.abort) != 0;
  if (failed) control.stopped = 1;
  if (lent != nullptr) {
    if (failed) lent->stopped = 1;
    ++lent->launches;
  }
  const bool stopped = control.stopped != 0 || (lent != nullptr && lent->stopped != 0);
  if (stopped && control.host_failed != nullptr) ptx::st_release_sys(control.host_failed, 1U);
  control.exited_before = ptx::ld_relaxed_gpu(&control.exited);
  control.met_before = ptx::ld_relaxed_gpu(&control.met);
  control.epoch = begin.epoch + 1;
}

/// All threads of every CTA of a launch that is stopped (LaunchControl or LentControl), instead of everything
/// else. Nobody in it waits for a count of the host's, so the poller hands none on.
__device__ __forceinline__ void count_out(LaunchControl& control, LentControl* lent = nullptr) {
  if (cta_index() != 0) return end_cta(control);
  const LaunchBegin begin(control, lent);
  if (thread_index() < 32) poll_host(control, HostWatch{}, PolledCounts{}, cta_count() - 1);
  end_launch(control, lent, begin);
}

}  // namespace mkernel::kernels

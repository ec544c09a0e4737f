// How a launch ends: every CTA counts itself out, CTA 0 waits for the others (cuda/launch/poller.cuh) and
// opens the next epoch. Counts only grow; nothing is reset, so a launch can be replayed by a graph, and
// launches may differ in their numbers of CTAs.
//
// A launch that failed stops those that are queued behind it, also of other operations that share its lent
// workspace (base/lent_workspace.h). They must not push, put or count anything: that whoever is in launch
// g + 2 has seen every rank end launch g holds only as long as no launch fails. A slower rank would compute
// launch g from what launch g + 2 left.
//
// Two launches at a time of one operation would share its counts and its tasks, and each would compute only a
// part. So a launch keeps what the counts were when it began, and ends by a compare-and-swap from that: of
// two that ran at the same time only one can succeed, also when they end in the same moment.
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

/// What the counts were when a launch began: they change only when every CTA has ended. A launch keeps it to
/// its end, where the counts may be those of another launch that ran at the same time.
struct LaunchBegin {
  std::uint64_t epoch;
  std::uint64_t exited;    ///< CTAs that had ended
  std::uint64_t turn = 0;  ///< launches that the shared workspace has seen

  __device__ __forceinline__ LaunchBegin(const LaunchControl& control, const LentControl* lent)
      : epoch(control.epoch), exited(control.exited_before) {
    if (lent != nullptr) turn = lent->launches;
  }
};

/// One thread of CTA 0: another launch has ended since this one began. Instead of a wait that has failed, for
/// such a wait has failed because of it.
__device__ __forceinline__ void report_not_alone(LaunchControl& control, DeviceTag of, std::uint64_t expected,
                                                 std::uint64_t seen) {
  control.failed = 1;
  control.site = {DeviceRole::kPoller, of, -1, 0};
  control.expected = expected;
  control.seen = seen;
  control.waited_ns = 0;
  ptx::st_release_gpu(&control.abort, 1U);
}

/// All threads of CTA 0, after poll_host() in one of its warps: nobody else is there any more. What it reads
/// it reads at once, for each trip to the L2 that waits for another one makes every launch longer (0.7 us);
/// the compare-and-swaps are on their way together with the loads.
__device__ __forceinline__ void end_launch(LaunchControl& control, LentControl* lent,
                                           const LaunchBegin& begin) {
  __syncthreads();  // hands on what the poller has acquired of those who ended before
  if (thread_index() != 0) return;
  const std::uint32_t aborted = ptx::ld_relaxed_gpu(&control.abort);
  const std::uint32_t stopped_before = ptx::ld_relaxed_gpu(&control.stopped);
  const std::uint64_t exited = ptx::ld_relaxed_gpu(&control.exited);
  const std::uint64_t met = ptx::ld_relaxed_gpu(&control.met);
  std::uint64_t turn = begin.turn;
  std::uint32_t lent_stopped = 0;
  const std::uint64_t epoch = ptx::atom_cas_relaxed_gpu(&control.epoch, begin.epoch, begin.epoch + 1);
  if (lent != nullptr) {
    turn = ptx::atom_cas_relaxed_gpu(&lent->launches, begin.turn, begin.turn + 1);
    lent_stopped = ptx::ld_relaxed_gpu(&lent->stopped);
  }
  const bool disturbed = epoch != begin.epoch || turn != begin.turn, failed = aborted != 0 || disturbed;
  if (epoch != begin.epoch) {
    report_not_alone(control, DeviceTag::kEpoch, begin.epoch, epoch);
  } else if (turn != begin.turn) {
    report_not_alone(control, DeviceTag::kTurn, begin.turn, turn);
  }
  if (failed) control.stopped = 1;
  if (failed && lent != nullptr) lent->stopped = 1;
  if ((failed || stopped_before != 0 || lent_stopped != 0) && control.host_failed != nullptr)
    ptx::st_release_sys(control.host_failed, 1U);
  control.exited_before = exited;
  control.met_before = met;
}

/// All threads of every CTA of a launch that is stopped (LaunchControl or LentControl), instead of everything
/// else. Nobody in it waits for a count of the host's, so the poller hands none on.
__device__ __forceinline__ void count_out(LaunchControl& control, LentControl* lent = nullptr) {
  if (cta_index() != 0) return end_cta(control);
  const LaunchBegin begin(control, lent);
  if (thread_index() < 32) poll_host(control, HostWatch{}, PolledCounts{}, begin.exited + cta_count() - 1);
  end_launch(control, lent, begin);
}

}  // namespace mkernel::kernels

// The one bounded wait of the cuda executor: for a word of this GPU's memory that another CTA, another GPU or
// the poller writes. It ends at the word, at an abort of the launch, or at the deadline; a failed wait says
// once, in the launch's control block, who waited for whom, and makes every other wait of the launch give up.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/sync/launch_control.h"
#include "kernels/cuda/sync/trace.cuh"

namespace mkernel::kernels {

struct DeviceWaitScope {
  LaunchControl* control;
  std::uint64_t deadline_ns;  ///< of every single wait; more than kLongestWaitNs counts as that
  DeviceTrace trace = {};     ///< told of every wait that had to wait
};

/// For a wait that other waits come before, on this rank or another: when a rank is missing, the waits that
/// need it directly (stage 0) end first and name it, as Launch::at_stage() has it for the cpu executor.
__device__ __forceinline__ DeviceWaitScope at_stage(const DeviceWaitScope& scope, std::uint32_t stage) {
  return {scope.control, scope.deadline_ns * (4 + stage) / 4, scope.trace};
}

/// Any number of threads; the first one's site stays.
__device__ __forceinline__ void report_failed_wait(LaunchControl& control, const DeviceWaitSite& site,
                                                   std::uint64_t expected, std::uint64_t seen,
                                                   std::uint64_t waited_ns) {
  if (atomicExch(&control.failed, 1U) == 0) {
    control.site = site;
    control.expected = expected;
    control.seen = seen;
    control.waited_ns = waited_ns;
  }
  ptx::st_release_gpu(&control.abort, 1U);
}

/// Until `seen()` returns at least `expected`. `seen` must read with acquire what it hands on. False when the
/// wait gave up: what it waited for is recorded, unless another's was first.
template <typename Seen>
__device__ __forceinline__ bool wait_until(Seen&& seen, std::uint64_t expected, const DeviceWaitSite& site,
                                           const DeviceWaitScope& scope) {
  constexpr unsigned kCheckEvery =
      256;  // loads; the abort word and the clock cost as much as the word itself
  std::uint64_t begin = 0;
  for (unsigned round = 1;; ++round) {  // a long wait goes round the type
    const std::uint64_t value = seen();
    if (value >= expected) {
      if (begin != 0 && is_traced(scope.trace)) trace_wait(scope.trace, begin, site);
      return true;
    }
    if (begin == 0 && is_traced(scope.trace)) begin = ptx::globaltimer();
    if (round % kCheckEvery != 0) continue;
    const bool aborted = ptx::ld_acquire_gpu(&scope.control->abort) != 0;
    const std::uint64_t now = ptx::globaltimer();
    if (begin == 0) begin = now;
    if (!aborted && now - begin < bounded_wait_ns(scope.deadline_ns)) continue;
    report_failed_wait(*scope.control, site, expected, value, now - begin);
    return false;
  }
}

/// Until `word` (acquire, sys) is at least `expected`: what was written before the release that brought it
/// there is visible to this thread's ordinary loads (before TMA loads: fence_proxy_async_global()). False
/// when it gave up.
__device__ __forceinline__ bool wait_at_least(const std::uint64_t* word, std::uint64_t expected,
                                              const DeviceWaitSite& site, const DeviceWaitScope& scope) {
  return wait_until([word] { return ptx::ld_acquire_sys(word); }, expected, site, scope);
}

}  // namespace mkernel::kernels

// The relay: the one warp of a grid that reads host memory. What it sees it hands on in GPU memory, where
// everybody else waits.
#pragma once

#include <cstdint>

#include "kernels/ptx/global.cuh"
#include "kernels/sync/grid.cuh"
#include "kernels/sync/host_watch.h"
#include "kernels/sync/launch_control.h"

namespace mkernel::kernels {

/// One whole warp, until `leavers` CTAs (or roles that count themselves in `exited` as end_cta() does) have
/// ended in this launch. An abort that the host sees becomes one that the kernel sees. Needs no deadline: the
/// waits of the others have theirs.
///
/// The lanes read different words, so up to 31 counts cost one trip over the bus (about 1 us), the next 32
/// one more. Sleeps only when there is no count to wait for.
///
/// NOTES: the count is handed on by a relaxed store, where the book asks for a release (a fence of 0.4
/// us: 3.1 instead of 2.7 us for an echo). It is enough because the relay hands on nothing that it has
/// written itself: what a count stands for was in place, at this GPU's L2 or in host memory, before the proxy
/// or NIC published the count; the store depends on the acquired value; and whoever acquires `seen` drops its
/// L1 first. A relay that writes anything but counts needs the release.
__device__ __forceinline__ void relay_host(LaunchControl& control, const HostWatch& host,
                                           const RelayedCounts& counts, std::uint64_t leavers) {
  constexpr unsigned kAbortEvery = 1024;  // sweeps: about a millisecond; a look costs one more trip
  constexpr unsigned kPauseNs = 1000;
  const std::uint64_t all_ended = control.exited_before + leavers;
  const std::uint32_t lane = thread_index() % 32;
  const std::uint32_t words = counts.words();
  const std::uint32_t* abort_word = lane == 0 ? host.session_abort : lane == 1 ? host.group_abort : nullptr;
  for (unsigned sweep = 0;; ++sweep) {
    bool ended = false;
    for (std::uint32_t i = lane; i <= words; i += 32) {
      // The last word is that of the CTAs' end, beside the counts: a branch of its own would cost a trip.
      const bool is_count = i < words;
      const std::uint64_t base = is_count ? ptx::ld_relaxed_gpu(counts.base + i) : 0;
      const std::uint64_t before = is_count ? ptx::ld_relaxed_gpu(counts.seen + i) : 0;
      const std::uint64_t now = ptx::ld_acquire_sys(is_count ? counts.source(i) : &control.exited) - base;
      if (!is_count) {
        ended = now >= all_ended;
      } else if (now != before) {
        ptx::st_relaxed_gpu(counts.seen + i, now);
      }
    }
    if (__any_sync(~0U, ended)) return;
    if (sweep % kAbortEvery == 0 && abort_word != nullptr && ptx::ld_acquire_sys(abort_word) != 0) {
      ptx::st_release_gpu(&control.abort, 1U);
    }
    if (words == 0) __nanosleep(kPauseNs);
  }
}

}  // namespace mkernel::kernels

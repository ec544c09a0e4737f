// The poller: the one warp of a grid that reads host memory. What it sees it hands on in GPU memory, where
// everybody else waits.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/sync/launch_control.h"
#include "kernels/cuda/sync/thread_group.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "mkernel/device_endpoint.h"

namespace mkernel::kernels {

/// A word in host memory, and where its value goes.
struct PolledWord {
  const std::uint64_t* source;
  std::uint64_t* seen;  ///< null for the last word of a sweep: how many CTAs have ended
  std::uint64_t base;   ///< what `source` read at the start
  std::uint64_t last;   ///< what was written to `seen`
};

__device__ __forceinline__ PolledWord polled_word(const PolledCounts& counts, std::uint32_t i,
                                                  const std::uint64_t* exited) {
  if (i == counts.words()) return {exited, nullptr, 0, 0};
  return {counts.source(i), counts.seen + i, counts.base[i], ptx::ld_relaxed_gpu(counts.seen + i)};
}

/// One whole warp, until `all_ended` CTAs (or roles that count themselves in `exited` as end_cta() does) have
/// ended over all launches: those before this one (LaunchBegin::exited) and its own. An abort that the host
/// sees becomes one that the kernel sees. The waits of the others have deadlines, so it ends after them; a
/// CTA that ends without counting itself out is a bug of a kernel's, and the poller gives up when nothing has
/// happened (no count has changed, no CTA has ended) for four times the longest deadline. Sleeps only when
/// there is no count to wait for.
///
/// The lanes read different words in one load, so up to 31 counts cost one trip over the bus (about 1 us),
/// the next 32 one more; the count of ended CTAs is among them, for a load of its own would be a trip of its
/// own.
///
/// NOTES: polling more often does not help. With several loads of one word in flight, or a second warp that
/// polls it, an echo takes longer (tests/perf/notes.md).
///
/// NOTES: a count is handed on by a relaxed store, where the book asks for a release (a fence of 0.3 us in
/// every round trip). It is enough because the poller hands on nothing that it has written itself: what a
/// count stands for was in place, at this GPU's L2 or in host memory, before the proxy or NIC published the
/// count; the store depends on the acquired value; and whoever acquires `seen` drops its L1 first. A poller
/// that writes anything but counts needs the release.
__device__ __forceinline__ void poll_host(LaunchControl& control, const HostWatch& host,
                                          const PolledCounts& counts, std::uint64_t all_ended) {
  constexpr unsigned kAbortEvery = 1024;  // sweeps: about a millisecond; a look costs one more trip
  constexpr unsigned kPauseNs = 64;       // its last look is on the way of every launch
  const std::uint32_t lane = thread_index() % 32;
  const std::uint32_t words = counts.words();
  const std::uint32_t* abort_word = lane == 0 ? host.session_abort : lane == 1 ? host.group_abort : nullptr;
  constexpr auto kMostSilence = static_cast<std::uint32_t>(4 * kLongestDeadlineNs >> 30);  // x 2^30 ns
  std::uint32_t active = 0;  // when something happened last; 0: since the first look
  std::uint64_t last_exited = 0;
  bool changed = false;
  PolledWord word = polled_word(counts, min(lane, words), &control.exited);
  for (unsigned sweep = 0;; ++sweep) {
    bool ended = false;
    for (std::uint32_t i = lane; i <= words; i += 32) {
      if (words >= 32) word = polled_word(counts, i, &control.exited);  // more than one for a lane to keep
      const std::uint64_t now = ptx::ld_acquire_sys(word.source) - word.base;
      if (word.seen == nullptr) {
        ended = now >= all_ended;
        changed |= now != last_exited;
        last_exited = now;
      } else if (now != word.last) {
        ptx::st_relaxed_gpu(word.seen, now);
        word.last = now;
        changed = true;
      }
    }
    if (sweep % kAbortEvery == 0) {
      if (abort_word != nullptr && ptx::ld_acquire_sys(abort_word) != 0)
        ptx::st_release_gpu(&control.abort, 1U);
      const auto clock = static_cast<std::uint32_t>(ptx::globaltimer() >> 30) + 1;
      const std::uint32_t now = __shfl_sync(~0U, clock, 0);
      if (active == 0 || __any_sync(~0U, changed)) active = now;
      changed = false;
      if (now - active > kMostSilence) {
        if (lane == 0) {
          report_failed_wait(control, {DeviceRole::kPoller, DeviceTag::kLaunchEnd, -1, 0}, all_ended,
                             ptx::ld_relaxed_gpu(&control.exited), std::uint64_t{now - active} << 30);
        }
        return;
      }
    }
    if (__any_sync(~0U, ended)) return;  // not before the first look: who comes late must not miss an abort
    if (words == 0) __nanosleep(kPauseNs);
  }
}

}  // namespace mkernel::kernels

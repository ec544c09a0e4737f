// How the roles of a kernel write down what they do when. One thread of a warp begins and ends its pieces of
// work; waits tell of themselves (cuda/sync/wait.cuh).
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/sync/launch_control.h"
#include "kernels/cuda/sync/thread_group.cuh"
#include "kernels/cuda/sync/trace.h"

namespace mkernel::kernels {

__device__ __forceinline__ bool is_traced(const DeviceTrace& trace) {
  return __builtin_expect(trace.capacity != 0, 0);
}

__device__ __forceinline__ std::uint32_t cta_track() {
  return cta_index() * kTracksPerCta;
}
__device__ __forceinline__ std::uint32_t warp_track() {
  return cta_track() + 1 + thread_index() / 32;
}

/// Any thread, of a launch that is traced.
__device__ __forceinline__ void add_trace_event(const DeviceTrace& trace, std::uint32_t track,
                                                std::uint64_t begin_ns, DeviceEventKind kind,
                                                std::uint32_t what, std::int32_t peer, std::uint32_t index) {
  const std::uint32_t n = atomicAdd(&trace.tracks[track].events, 1U);
  if (n >= trace.capacity) return;
  trace.events[std::uint64_t{track} * trace.capacity + n] = {begin_ns, ptx::globaltimer(), kind, what, peer,
                                                             index};
}

/// One thread of a warp, for all its pieces; they do not overlap, but may wait inside. The begin is kept in
/// memory: it costs no register until the end.
__device__ __forceinline__ void begin_work(const DeviceTrace& trace) {
  if (is_traced(trace)) trace.tracks[warp_track()].begin_ns = ptx::globaltimer();
}
__device__ __forceinline__ void end_work(const DeviceTrace& trace, DeviceWork work,
                                         std::uint32_t index = kNoIndex) {
  if (!is_traced(trace)) return;
  const std::uint32_t track = warp_track();
  add_trace_event(trace, track, trace.tracks[track].begin_ns, DeviceEventKind::kWork,
                  static_cast<std::uint32_t>(work), -1, index);
}

/// A wait of any lane that began then and is over.
__device__ __forceinline__ void trace_wait(const DeviceTrace& trace, std::uint64_t begin_ns,
                                           const DeviceWaitSite& site) {
  add_trace_event(trace, warp_track(), begin_ns, DeviceEventKind::kWait, static_cast<std::uint32_t>(site.tag),
                  site.peer, site.index);
}

/// All threads of a CTA, at its beginning and its end.
__device__ __forceinline__ void begin_role(const DeviceTrace& trace) {
  if (is_traced(trace) && thread_index() == 0) trace.tracks[cta_track()].begin_ns = ptx::globaltimer();
}
__device__ __forceinline__ void end_role(const DeviceTrace& trace, DeviceRole role) {
  if (!is_traced(trace) || thread_index() != 0) return;
  add_trace_event(trace, cta_track(), trace.tracks[cta_track()].begin_ns, DeviceEventKind::kRole,
                  static_cast<std::uint32_t>(role), -1, kNoIndex);
}

/// For kernels that nobody traces: the same calls, and nothing of them in the code.
struct NoTrace {};
__device__ __forceinline__ bool is_traced(NoTrace) {
  return false;
}
__device__ __forceinline__ void begin_work(NoTrace) {}
__device__ __forceinline__ void end_work(NoTrace, DeviceWork, std::uint32_t = kNoIndex) {}

}  // namespace mkernel::kernels

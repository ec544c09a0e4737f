// CTA 0 of a launch, which is there for the whole launch beside its own role: one of its warps polls the
// host, over several nodes others send, and together they end the launch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch/end.cuh"
#include "kernels/cuda/launch/poller.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/sync/launch_control.h"
#include "kernels/cuda/sync/trace.cuh"
#include "mkernel/device_endpoint.h"

namespace mkernel::kernels {

/// A whole warp of CTA 0, when it has no more waits that need the poller: it counts itself out as a CTA does.
__device__ __forceinline__ void leave_poller(LaunchControl& control) {
  __syncwarp();  // the lanes that had nothing to do meet the one that had
  if (threadIdx.x % 32 == 0) ptx::red_add_release_gpu(&control.exited, 1ULL);
}

/// All threads of a CTA of `kWarps` warps whose role communicates, CTA 0 among them. `work(warp)`: a whole
/// warp at the work of the role; `send(sender)`: one thread, inter_send. In CTA 0 the last warp polls and the
/// `senders` warps before it send; the others, and all warps of other CTAs, work. CTA 0 ends here, and with
/// it the launch; the others go on, and end with end_cta(). The poller ends after everybody else, as their
/// waits need it: the other warps of CTA 0 count themselves out as CTAs do. Where `work` waits for nobody and
/// nobody sends, `first_goes_on` may be set: CTA 0 works and goes on as the others, and polls later
/// (poll_beside_work()).
template <int kWarps, class Work, class Send>
__device__ __forceinline__ void communicate(const device::Endpoint& endpoint, int senders, const Work& work,
                                            const Send& send, bool first_goes_on = false) {
  LaunchControl& control = *endpoint.control;
  const LaunchBegin begin(control, endpoint.lent);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool stays = blockIdx.x == 0 && !first_goes_on;
  const int workers = stays ? kWarps - 1 - senders : kWarps;
  if (warp < workers) work(warp);
  if (!stays) return;
  if (warp == kWarps - 1) {
    poll_host(control, endpoint.host, endpoint.counts, begin.exited + gridDim.x - 1 + kWarps - 1);
  } else {
    if (warp >= workers && threadIdx.x % 32 == 0) send(warp - workers);
    leave_poller(control);
  }
  end_launch(control, endpoint.lent, begin);
}

/// One whole warp of a CTA 0 that computes as the others do, and polls the host beside: until all other CTAs
/// have ended and one warp of this one, whose waits are over last, has called leave_poller(). Then all
/// threads of the CTA call end_launch(). Before it begins nobody sees an abort, nor a count of the host's.
__device__ __forceinline__ void poll_beside_work(const device::Endpoint& endpoint, const LaunchBegin& begin) {
  poll_host(*endpoint.control, endpoint.host, endpoint.counts, begin.exited + gridDim.x);
}

/// Shared memory of a CTA of compute_alone(), whose work needs `Body`.
template <class Body>
struct AloneShared {
  Body body;
  LaunchBegin begin;  ///< of CTA 0
};

/// Dynamic shared memory of such a launch.
template <class Body>
constexpr std::size_t alone_shared_bytes() {
  static_assert(sizeof(AloneShared<Body>) <= 227 * 1024, "more than a CTA can have");
  return sizeof(AloneShared<Body>);
}

/// All threads of every CTA, of `kWarps` warps, in a launch that waits for no other rank: `work(begin)`, in
/// which the threads of the CTA meet at a barrier, and what ends the launch. CTA 0's poller comes when its
/// own work is done, for it has nobody to poll for earlier: the launch ends by itself, and fails then if the
/// host has aborted it. The poller is the last warp, which multiplies and so has the most registers left.
/// `kept`: shared memory that the work does not touch. The begin of the launch waits there for the end,
/// because the work needs all registers.
template <int kWarps, class Work>
__device__ __forceinline__ void compute_alone(const device::Endpoint& endpoint, LaunchBegin& kept,
                                              const Work& work) {
  LaunchControl& control = *endpoint.control;
  if (control.stopped != 0) return count_out(control);
  begin_role(endpoint.trace);
  const LaunchBegin begin(control, nullptr);
  if (blockIdx.x == 0 && threadIdx.x == 0) kept = begin;
  work(begin);
  end_role(endpoint.trace, DeviceRole::kCompute);
  if (blockIdx.x != 0) return end_cta(control);
  if (threadIdx.x / 32 == kWarps - 1)
    poll_host(control, endpoint.host, PolledCounts{}, kept.exited + gridDim.x - 1);
  end_launch(control, nullptr, kept);
}

}  // namespace mkernel::kernels

// The device API: what a kernel of yours does with a device::Endpoint (Group::device_endpoint()). It puts to
// other ranks through the daemon, waits for what they put here, stores to the GPUs of its node over NVLink,
// and does all of that in one launch that a CUDA graph can replay.
//
// A kernel that waits gives block 0 of its grid to poll() and lets every other block end with leave():
//
//   __global__ void exchange(mkernel::device::Endpoint endpoint, ...) {
//     if (mkernel::device::is_poller()) return mkernel::device::poll(endpoint);
//     if (mkernel::device::stopped(endpoint)) return mkernel::device::leave(endpoint);
//     ...
//     mkernel::device::leave(endpoint);
//   }
//
// Blocks are multiples of 32 threads. Blocks that wait for each other must all be resident: launch no more
// than fit, or cooperatively. Launches with one endpoint follow each other on a stream; they may be different
// kernels of different sizes. Keep an Activity (Group::keep_active()) from before a launch until its stream
// is done: otherwise the daemon may sleep and see its puts late.
//
// Waits are bounded, by Endpoint::deadline_ns and by half an hour. A call that returns false gave up: a rank,
// the daemon or a deadline failed, or another wait of the launch did. Then leave at once;
// DeviceEndpoint::status() says who waited for what. Launches that are queued behind a failed one must do
// nothing: their puts, signals and stores could overwrite what a slower rank is still reading. stopped()
// tells them; a look in every put would cost a trip to the L2 cache, so it is the kernel that looks, once.
//
// Load a kernel before ranks wait for each other (cudaFuncGetAttributes() and cuFuncLoad(), or
// CUDA_MODULE_LOADING=EAGER): CUDA loads a kernel at its first launch, and that may wait for a kernel on the
// same GPU which waits for this rank.
//
// Counts
// belong to the endpoint: they start at 0 when it is made and grow over all launches, so launch number e (see
// launches()) with n puts on a channel waits for e * n + i + 1. Numbers of ranks and lanes that are out of
// range are a bug of the caller; the daemon ends the session for a request that names what is not there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/comm/barrier.cuh"
#include "kernels/cuda/comm/endpoint.cuh"
#include "kernels/cuda/launch/end.cuh"
#include "kernels/cuda/launch/poller.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/sync/thread_group.cuh"
#include "mkernel/device_endpoint.h"

namespace mkernel::device {

/// Who makes a call: Thread{}, Warp{} (all 32 threads), Cta{} (all threads).
using kernels::Cta;
using kernels::Thread;
using kernels::Warp;

// ---- the launch

/// Whether this block is the poller: block 0.
__device__ __forceinline__ bool is_poller() {
  return kernels::cta_index() == 0;
}

/// All threads of block 0, and nothing else: copies the counts of the endpoint from host memory, which only
/// this one warp may read, to the GPU's, where the other blocks wait; ends the launch when all of them have
/// left.
__device__ __forceinline__ void poll(const Endpoint& endpoint) {
  const kernels::LaunchBegin begin(*endpoint.control, endpoint.lent);
  if (kernels::thread_index() < 32)
    kernels::poll_host(*endpoint.control, endpoint.host, endpoint.counts,
                       begin.exited + kernels::cta_count() - 1);
  kernels::end_launch(*endpoint.control, endpoint.lent, begin);
}

/// Whether a launch with this endpoint has failed before this one. The same in all its threads; look before
/// the first put, signal or store to another rank, and leave when it is so.
__device__ __forceinline__ bool stopped(const Endpoint& endpoint) {
  return endpoint.control->stopped != 0;
}

/// All threads of every other block, as the last thing they do.
__device__ __forceinline__ void leave(const Endpoint& endpoint) {
  kernels::end_cta(*endpoint.control);
}

/// Launches with this endpoint that have ended: the number of this one, from 0. The same in all its threads.
__device__ __forceinline__ std::uint64_t launches(const Endpoint& endpoint) {
  return endpoint.control->epoch;
}

// ---- between ranks, on a channel: (this rank -> target, lane)

/// Lets puts that the group's leader (its first thread) makes afterwards carry what the group has written
/// before: in whatever memory, once for any number of puts. A sys fence: about 1.4 us.
template <class Group>
__device__ __forceinline__ void release(Group group) {
  group.sync();
  if (group.leads()) (void)kernels::ptx::fence_acq_rel_sys();
}

/// One thread: puts `bytes` from `local` of this rank to `remote` of `target`; more than 1 GiB are several
/// puts. Relaxed: the data must have been released (release()) by this thread or one that it has synchronised
/// with, and must not change before wait_completed(). Waits only while the work ring is full.
__device__ __forceinline__ bool put(const Endpoint& endpoint, std::uint32_t target, std::uint32_t lane,
                                    Place local, Place remote, std::uint64_t bytes) {
  return kernels::put(endpoint, target, lane, local, remote, bytes, kernels::DeviceRole::kUser,
                      kernels::ptx::SysReleased::by_contract_of_caller());
}

/// One thread: a put of nothing, which counts as one. Relaxed, as put().
__device__ __forceinline__ bool signal(const Endpoint& endpoint, std::uint32_t target, std::uint32_t lane) {
  return kernels::put(endpoint, target, lane, {}, {}, 0, kernels::DeviceRole::kUser,
                      kernels::ptx::SysReleased::by_contract_of_caller());
}

/// Puts of this rank on the channel so far, by all threads of all launches; relaxed.
__device__ __forceinline__ std::uint64_t issued(const Endpoint& endpoint, std::uint32_t target,
                                                std::uint32_t lane) {
  return kernels::ptx::ld_relaxed_gpu(endpoint.issued + endpoint.counts.arrivals_index(target, lane));
}

/// The group, together: until the first `count` puts of channel (source -> this rank, lane) are visible to
/// all of it; acquire. (Before they are read by TMA: fence.proxy.async.) The same answer in the whole group.
template <class Group>
__device__ __forceinline__ bool wait_arrival(Group group, const Endpoint& endpoint, std::uint32_t source,
                                             std::uint32_t lane, std::uint64_t count) {
  return group.agree(!group.leads() ||
                     kernels::wait_arrival(endpoint, source, lane, count, kernels::DeviceRole::kUser));
}

/// One thread: arrivals so far; acquire, never waits.
__device__ __forceinline__ std::uint64_t arrived(const Endpoint& endpoint, std::uint32_t source,
                                                 std::uint32_t lane) {
  return kernels::ptx::ld_acquire_gpu(endpoint.counts.seen + endpoint.counts.arrivals_index(source, lane));
}

/// The group, together: until the sources of the first `count` puts of channel (this rank -> target, lane)
/// may be overwritten; acquire.
template <class Group>
__device__ __forceinline__ bool wait_completed(Group group, const Endpoint& endpoint, std::uint32_t target,
                                               std::uint32_t lane, std::uint64_t count) {
  return group.agree(!group.leads() ||
                     kernels::wait_completed(endpoint, target, lane, count, kernels::DeviceRole::kUser));
}

/// One thread: puts completed so far; acquire, never waits.
__device__ __forceinline__ std::uint64_t completed(const Endpoint& endpoint, std::uint32_t target,
                                                   std::uint32_t lane) {
  return kernels::ptx::ld_acquire_gpu(endpoint.counts.seen + endpoint.counts.completed_index(target, lane));
}

// ---- inside a node, over NVLink

/// Ranks of this node, and the place of a rank among them; -1 for a rank of another node.
__device__ __forceinline__ std::int32_t local_size(const Endpoint& endpoint) {
  return static_cast<std::int32_t>(endpoint.node.local_size);
}
__device__ __forceinline__ std::int32_t local_rank(const Endpoint& endpoint, std::uint32_t rank) {
  return endpoint.local_of_rank[rank];
}

/// The buffer of a rank of this node; this rank's own among them. Ordinary loads and stores; atomics only
/// where the link between the GPUs has them (NVLink has, PCIe has none).
__device__ __forceinline__ std::byte* peer(const Peers& peers, std::int32_t local_rank) {
  return peers.of_local_rank[local_rank];
}

/// All threads of every block but the poller: what any of them wrote is visible to all of them afterwards
/// (gpu scope).
__device__ __forceinline__ bool grid_barrier(const Endpoint& endpoint) {
  return kernels::meet_grid(*endpoint.control, kernels::DeviceRole::kUser, endpoint.deadline_ns);
}

/// The same for every rank of the node at once (sys scope): what any of them stored in any of their memories
/// is visible to all of them afterwards. Every rank of the node makes the same number of these calls.
__device__ __forceinline__ bool node_barrier(const Endpoint& endpoint) {
  bool here = grid_barrier(endpoint);
  if (kernels::cta_index() == 1) {
    if (here && kernels::thread_index() < 32)
      here = kernels::meet_node(endpoint.node, *endpoint.control, kernels::DeviceRole::kUser,
                                endpoint.deadline_ns);
    here = Cta{}.agree(here);
  }
  return here && grid_barrier(endpoint);
}

}  // namespace mkernel::device

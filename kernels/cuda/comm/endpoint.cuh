// An endpoint on the GPU: puts, signals and the waits that belong to them; the counterpart of
// cpu/comm/endpoint.h for threads of a kernel. The contracts are those of mkernel/device.cuh; here a wait
// also says for which role.
#pragma once

#include <cstdint>

#include "kernels/cuda/comm/ring.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "mkernel/device_endpoint.h"
#include "proto/abi/version.h"
#include "proto/abi/work_request.h"

namespace mkernel::kernels {

__device__ __forceinline__ DeviceWaitScope wait_scope(const device::Endpoint& endpoint) {
  return {endpoint.control, endpoint.deadline_ns, endpoint.trace};
}

__device__ __forceinline__ DeviceWaitSite site_of(DeviceRole role, DeviceTag tag, std::uint32_t peer,
                                                  std::uint32_t lane) {
  return {role, tag, static_cast<std::int32_t>(peer), lane};
}

/// One put of at most abi::kMaxPutBytes. `released`: of the data, by this thread or one that it has
/// synchronised with.
__device__ __forceinline__ bool push_put(const device::Endpoint& endpoint, std::uint32_t target,
                                         std::uint32_t lane, device::Place local, device::Place remote,
                                         std::uint32_t bytes, DeviceRole role, ptx::SysReleased released) {
  const std::uint32_t group_lane = endpoint.first_lane + lane;
  const abi::WorkRequest request{
      .opcode = static_cast<std::uint8_t>(abi::Opcode::kPut),
      .channel = endpoint.first_channel + target * endpoint.counts.stride + group_lane,
      .peer = target,
      .length = bytes,
      .local_region = static_cast<std::uint16_t>(local.region),
      .remote_region = static_cast<std::uint16_t>(remote.region),
      .local_offset = local.offset,
      .remote_offset = remote.offset};
  const DeviceRing ring(endpoint.rings, endpoint.ring_share.ring(group_lane));
  if (!ring.push(request, site_of(role, DeviceTag::kRingRoom, target, lane), wait_scope(endpoint), released))
    return false;
  ptx::red_add_relaxed_gpu(endpoint.issued + endpoint.counts.arrivals_index(target, lane), 1);
  return true;
}

__device__ __forceinline__ bool put(const device::Endpoint& endpoint, std::uint32_t target,
                                    std::uint32_t lane, device::Place local, device::Place remote,
                                    std::uint64_t bytes, DeviceRole role, ptx::SysReleased released) {
  do {
    const auto part = static_cast<std::uint32_t>(bytes < abi::kMaxPutBytes ? bytes : abi::kMaxPutBytes);
    if (!push_put(endpoint, target, lane, local, remote, part, role, released)) return false;
    local.offset += part;
    remote.offset += part;
    bytes -= part;
  } while (bytes > 0);
  return true;
}

__device__ __forceinline__ bool wait_arrival(const device::Endpoint& endpoint, std::uint32_t source,
                                             std::uint32_t lane, std::uint64_t count, DeviceRole role) {
  return wait_at_least(endpoint.counts.seen + endpoint.counts.arrivals_index(source, lane), count,
                       site_of(role, DeviceTag::kArrivals, source, lane), wait_scope(endpoint));
}

/// Whether that wait would return at once.
__device__ __forceinline__ bool has_arrived(const device::Endpoint& endpoint, std::uint32_t source,
                                            std::uint32_t lane, std::uint64_t count) {
  return ptx::ld_acquire_gpu(endpoint.counts.seen + endpoint.counts.arrivals_index(source, lane)) >= count;
}

__device__ __forceinline__ bool wait_completed(const device::Endpoint& endpoint, std::uint32_t target,
                                               std::uint32_t lane, std::uint64_t count, DeviceRole role) {
  return wait_at_least(endpoint.counts.seen + endpoint.counts.completed_index(target, lane), count,
                       site_of(role, DeviceTag::kCompleted, target, lane), wait_scope(endpoint));
}

}  // namespace mkernel::kernels

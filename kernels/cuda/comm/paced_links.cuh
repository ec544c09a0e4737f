// The wait of a kernel for links that are modelled.
#pragma once

#include <cstdint>

#include "kernels/cuda/comm/paced_links.h"
#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

MK_HOST_DEVICE inline bool are_paced(const PacedLinks& links) {
  return __builtin_expect(links.fs_per_byte != 0, 0);
}

/// One thread, which has stored `bytes` for other ranks of the node: when links will have brought them,
/// PacedLinks::most_ns from now at most, in the lowest bits of nanoseconds. Atomics without a loop: of many
/// threads that compare and swap one word, one gets on in every round trip to it.
__device__ __forceinline__ std::uint32_t book_links(const PacedLinks& links, std::uint64_t bytes) {
  const std::uint64_t busy = bytes * links.fs_per_byte / 1'000'000, now = ptx::globaltimer();
  ptx::atom_max_relaxed_gpu(links.free_ns, now);
  const std::uint64_t sent = ptx::atom_add_relaxed_gpu(links.free_ns, busy) + busy;
  const std::uint64_t wait = sent + links.latency_ns - now;
  return static_cast<std::uint32_t>(now + (wait < links.most_ns ? wait : links.most_ns));
}

/// One thread, before it says that what it has booked is there.
__device__ __forceinline__ void await_booked(std::uint32_t there) {
  while (static_cast<std::int32_t>(there - static_cast<std::uint32_t>(ptx::globaltimer())) > 0) {
  }
}

/// Both, of one that has nothing to do meanwhile.
__device__ __forceinline__ void await_links(const PacedLinks& links, std::uint64_t bytes) {
  if (are_paced(links)) await_booked(book_links(links, bytes));
}

}  // namespace mkernel::kernels

// Barriers of some of the warps of a CTA.
#pragma once

#include <cstdint>

namespace mkernel::kernels::ptx {

/// Whole warps, `threads` of them in all; `id` 1 .. 15. What they wrote before is visible to all after.
__device__ __forceinline__ void barrier_sync(std::uint32_t id, std::uint32_t threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts whole warps as being there, without waiting. Of the `threads` some arrive and the others sync.
__device__ __forceinline__ void barrier_arrive(std::uint32_t id, std::uint32_t threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace mkernel::kernels::ptx

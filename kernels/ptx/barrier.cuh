// Named barriers of a CTA: 1 to 15 are free, 0 is __syncthreads().
#pragma once

#include <cstdint>

namespace mkernel::kernels::ptx {

/// `threads` (a multiple of 32) threads meet at barrier `name`; orders their accesses to memory in the CTA.
__device__ __forceinline__ void barrier_sync_cta(std::uint32_t name, std::uint32_t threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/// Counts this thread in without waiting: what it wrote before is visible to those that barrier_sync_cta().
__device__ __forceinline__ void barrier_arrive_cta(std::uint32_t name, std::uint32_t threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

}  // namespace mkernel::kernels::ptx

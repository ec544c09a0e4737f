// Addresses in the shared window: what mbarrier, TMA, stmatrix and wgmma descriptors take.
#pragma once

#include <cstdint>

namespace mkernel::kernels::ptx {

/// 32-bit address of `pointer` (into this CTA's shared memory) in the shared::cta window, which is also its
/// shared::cluster address.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// True in exactly one lane of the (converged) warp; the compiler then knows that one thread runs the branch.
__device__ __forceinline__ bool elect_sync() {
  std::uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

/// Nanoseconds of the device's global timer: coarse, for deadlines and timelines.
__device__ __forceinline__ std::uint64_t globaltimer() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

/// Ends the kernel with an error (illegal address), for states that only a bug of ours can bring about.
/// NOTES: not `trap`: with one anywhere in a kernel, ptxas (13.0) gives no role more registers than the
/// launch bound, whatever setmaxnreg says, and spills.
__device__ __forceinline__ void st_fault() {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(std::uint64_t{0}), "r"(0) : "memory");
}

}  // namespace mkernel::kernels::ptx

// Bulk copies of plain bytes between global and shared memory by the copy engine of the SM. Addresses and
// sizes are multiples of 16 bytes. Global memory may be a peer GPU's, mapped here. Completion of stores is
// counted by bulk groups (tma.cuh).
#pragma once

#include <cstdint>

namespace mkernel::kernels::ptx {

/// `barrier` counts down the bytes.
__device__ __forceinline__ void bulk_load(std::uint32_t shared, const void* global, std::uint32_t bytes,
                                          std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void bulk_store(void* global, std::uint32_t shared, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared),
               "r"(bytes)
               : "memory");
}

/// Adds fp32 values of shared memory to those of global memory. Each add is atomic, their order is not
/// defined.
__device__ __forceinline__ void bulk_reduce_add_f32(void* global, std::uint32_t shared, std::uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
               "r"(shared), "r"(bytes)
               : "memory");
}

}  // namespace mkernel::kernels::ptx

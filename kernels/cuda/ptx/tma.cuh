// TMA: tiles of a tensor between global and shared memory, moved by the copy engine of the SM. `map` is the
// global (or kernel parameter) address of a 128-byte tensor map, x the fastest dimension, both in elements.
// Shared addresses are aligned to 128 bytes (1024 with the 128-byte swizzle).
#pragma once

#include <cstdint>

namespace mkernel::kernels::ptx {

/// Fetches the descriptor into its cache ahead of the first use.
__device__ __forceinline__ void tma_prefetch_descriptor(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Loads one box; `barrier` counts down its full size, also for what lies outside the tensor and reads as 0.
__device__ __forceinline__ void tma_load_2d(std::uint32_t shared, const void* map, std::int32_t x,
                                            std::int32_t y, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], "
      "[%4];" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

/// Loads one box into the same place of every CTA whose bit is set in `ctas`; each one's own barrier at the
/// offset of `barrier` counts the bytes. Inside one cluster of one GPU.
__device__ __forceinline__ void tma_load_multicast_2d(std::uint32_t shared, const void* map, std::int32_t x,
                                                      std::int32_t y, std::uint32_t barrier,
                                                      std::uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(ctas)
      : "memory");
}

/// The same with a third coordinate, of maps that have one: the row of memory that y counts from.
__device__ __forceinline__ void tma_load_3d(std::uint32_t shared, const void* map, std::int32_t x,
                                            std::int32_t y, std::int32_t z, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4}], [%5];" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void tma_load_multicast_3d(std::uint32_t shared, const void* map, std::int32_t x,
                                                      std::int32_t y, std::int32_t z, std::uint32_t barrier,
                                                      std::uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(ctas)
      : "memory");
}

/// Brings a box into the L2, and nowhere else.
__device__ __forceinline__ void tma_prefetch_2d(const void* map, std::int32_t x, std::int32_t y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(x), "r"(y)
               : "memory");
}

/// The same of a map with a third coordinate.
__device__ __forceinline__ void tma_prefetch_3d(const void* map, std::int32_t x, std::int32_t y,
                                                std::int32_t z) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map), "r"(x),
               "r"(y), "r"(z)
               : "memory");
}

/// Stores one box; what lies behind the end of the tensor is not written. Coordinates are not negative: the
/// GPU takes such a store for an illegal instruction. Completion is counted by bulk groups.
__device__ __forceinline__ void tma_store_3d(const void* map, std::int32_t x, std::int32_t y, std::int32_t z,
                                             std::uint32_t shared) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
      "r"(x), "r"(y), "r"(z), "r"(shared)
      : "memory");
}

/// Closes the group of this thread's bulk stores since the last commit.
__device__ __forceinline__ void bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Until at most `kPending` groups have not *read* their shared memory: it may be overwritten then. Says
/// nothing about the destination.
template <int kPending>
__device__ __forceinline__ void bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Until at most `kPending` groups are not complete: the writes of the others are visible to this thread,
/// which may then release them to others.
/// NOTES: writes to a peer GPU may not have arrived there yet. Without a fence at system scope, words that
/// are stored after this call come before the data (seen on H200 over NVLink).
template <int kPending>
__device__ __forceinline__ void bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace mkernel::kernels::ptx

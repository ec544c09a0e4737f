// Words of global memory that hand data on between CTAs (gpu) and between GPUs or with the host (sys).
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/fence.cuh"

namespace mkernel::kernels::ptx {

__device__ __forceinline__ std::uint32_t ld_acquire_gpu(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ std::uint64_t ld_acquire_gpu(const std::uint64_t* word) {
  std::uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ std::uint32_t ld_acquire_sys(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ std::uint64_t ld_acquire_sys(const std::uint64_t* word) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

/// Orders nothing: for a word whose value alone matters.
__device__ __forceinline__ std::uint64_t ld_relaxed_gpu(const std::uint64_t* word) {
  std::uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ std::uint32_t ld_relaxed_gpu(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ void st_relaxed_gpu(std::uint64_t* word, std::uint64_t value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ void st_release_gpu(std::uint32_t* word, std::uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ void st_release_gpu(std::uint64_t* word, std::uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ void st_release_sys(std::uint32_t* word, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ void st_release_sys(std::uint64_t* word, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ void red_add_release_gpu(std::uint32_t* word, std::uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ void red_add_release_gpu(std::uint64_t* word, std::uint64_t value) {
  asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

// After a fence that orders what they hand on.
__device__ __forceinline__ void st_relaxed_sys(std::uint64_t* word, std::uint64_t value, SysReleased) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ void red_add_relaxed_sys(std::uint64_t* word, std::uint64_t value, SysReleased) {
  asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ void red_add_relaxed_gpu(std::uint64_t* word, std::uint64_t value) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

// Atomics that return what the word was.
__device__ __forceinline__ std::uint64_t atom_add_relaxed_gpu(std::uint64_t* word, std::uint64_t value) {
  std::uint64_t before;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(word), "l"(value)
               : "memory");
  return before;
}

__device__ __forceinline__ std::uint64_t atom_add_release_gpu(std::uint64_t* word, std::uint64_t value) {
  std::uint64_t before;
  asm volatile("atom.release.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(word), "l"(value)
               : "memory");
  return before;
}

__device__ __forceinline__ std::uint64_t atom_cas_relaxed_gpu(std::uint64_t* word, std::uint64_t expected,
                                                              std::uint64_t value) {
  std::uint64_t before;
  asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(word), "l"(expected), "l"(value)
               : "memory");
  return before;
}

__device__ __forceinline__ std::uint64_t atom_max_relaxed_gpu(std::uint64_t* word, std::uint64_t value) {
  std::uint64_t before;
  asm volatile("atom.relaxed.gpu.global.max.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(word), "l"(value)
               : "memory");
  return before;
}

__device__ __forceinline__ std::uint32_t atom_exch_acquire_gpu(std::uint32_t* word, std::uint32_t value) {
  std::uint32_t before;
  asm volatile("atom.acquire.gpu.global.exch.b32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(word), "r"(value)
               : "memory");
  return before;
}

/// 16 bytes at once, at an address that is a multiple of 16: a reader sees both words or none, the CPU across
/// PCIe too (measured: never torn).
__device__ __forceinline__ void st_relaxed_sys_v2(std::uint64_t* words, std::uint64_t low, std::uint64_t high,
                                                  SysReleased) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(words), "l"(low), "l"(high) : "memory");
}

}  // namespace mkernel::kernels::ptx

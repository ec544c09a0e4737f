// CUDA's names for the threads of a HostGrid. Include it before any device code, and put
// tests/support/on_host before the root in the include path: it has what stands in for kernels/cuda/ptx.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tests/support/host_grid.h"

// NOLINTBEGIN(readability-identifier-naming): the names are CUDA's
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __shared__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct uint4 {
  std::uint32_t x, y, z, w;
};
struct int2 {
  std::int32_t x, y;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};

#define threadIdx (::mkernel::test::host_thread().thread)
#define blockIdx (::mkernel::test::host_thread().block)
#define blockDim (::mkernel::test::host_thread().block_size)
#define gridDim (::mkernel::test::host_thread().grid_size)

using std::max;
using std::min;

inline void __syncwarp(std::uint32_t mask = ~0U) {
  ::mkernel::test::host_warp_sync(mask);
}
inline void __syncthreads() {
  ::mkernel::test::host_barrier(0, blockDim.x);
}

inline int __syncthreads_and(int mine) {
  return ::mkernel::test::host_all_of_cta(mine != 0) ? 1 : 0;
}

template <class Value>
Value __shfl_sync(std::uint32_t mask, Value mine, std::int32_t lane) {
  std::uint64_t bits = 0;
  __builtin_memcpy(&bits, &mine, sizeof mine);
  const std::uint64_t theirs = ::mkernel::test::host_exchange(mask, bits)[lane % 32];
  Value value;
  __builtin_memcpy(&value, &theirs, sizeof value);
  return value;
}
template <class Value>
Value __shfl_up_sync(std::uint32_t mask, Value mine, std::int32_t step) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  return __shfl_sync(mask, mine, lane >= step ? lane - step : lane);
}
template <class Value>
Value __shfl_xor_sync(std::uint32_t mask, Value mine, std::int32_t bits) {
  return __shfl_sync(mask, mine, static_cast<std::int32_t>(threadIdx.x % 32) ^ bits);
}
inline std::uint32_t __ballot_sync(std::uint32_t mask, bool mine) {
  const std::uint64_t* all = ::mkernel::test::host_exchange(mask, mine ? 1 : 0);
  std::uint32_t found = 0;
  for (std::uint32_t lane = 0; lane < 32; ++lane)
    if ((mask >> lane & 1) != 0 && all[lane] != 0) found |= 1U << lane;
  return found;
}
inline int __all_sync(std::uint32_t mask, bool mine) {
  return __ballot_sync(mask, mine) == mask ? 1 : 0;
}
inline int __any_sync(std::uint32_t mask, bool mine) {
  return __ballot_sync(mask, mine) != 0 ? 1 : 0;
}
inline void __nanosleep(std::uint32_t) {
  ::mkernel::test::host_yield();
}
inline std::uint32_t __match_any_sync(std::uint32_t mask, std::int32_t mine) {
  const std::uint64_t* all = ::mkernel::test::host_exchange(mask, static_cast<std::uint32_t>(mine));
  std::uint32_t found = 0;
  for (std::uint32_t lane = 0; lane < 32; ++lane)
    if ((mask >> lane & 1) != 0 && all[lane] == static_cast<std::uint32_t>(mine)) found |= 1U << lane;
  return found;
}
inline std::int32_t __reduce_add_sync(std::uint32_t mask, std::int32_t mine) {
  const std::uint64_t* all = ::mkernel::test::host_exchange(mask, static_cast<std::uint32_t>(mine));
  std::uint32_t sum = 0;
  for (std::uint32_t lane = 0; lane < 32; ++lane)
    if ((mask >> lane & 1) != 0) sum += static_cast<std::uint32_t>(all[lane]);
  return static_cast<std::int32_t>(sum);
}
inline int __popc(std::uint32_t bits) {
  return __builtin_popcount(bits);
}
inline int __ffs(std::int32_t bits) {
  return __builtin_ffs(bits);
}

// One fiber runs at a time, so these are as good as atomic.
template <class Word>
Word atomicAdd(Word* word, Word value) {
  const Word before = *word;
  *word += value;
  return before;
}
template <class Word>
Word atomicMin(Word* word, Word value) {
  const Word before = *word;
  *word = std::min(before, value);
  return before;
}
template <class Word>
Word atomicExch(Word* word, Word value) {
  const Word before = *word;
  *word = value;
  return before;
}
template <class Value>
Value __ldcg(const Value* from) {
  return *from;
}
// NOLINTEND(readability-identifier-naming)

// Who takes part in a call: one thread, a whole warp, a whole CTA. A group's leader acts for it; agree() ends
// the call for all of them together.
#pragma once

#include <cstdint>

namespace mkernel::kernels {

__device__ __forceinline__ std::uint32_t thread_index() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::uint32_t cta_index() {
  return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
}
__device__ __forceinline__ std::uint32_t cta_count() {
  return gridDim.x * gridDim.y * gridDim.z;
}

struct Thread {
  __device__ __forceinline__ bool leads() const { return true; }
  __device__ __forceinline__ void sync() const {}
  __device__ __forceinline__ bool agree(bool mine) const { return mine; }
};

/// All 32 threads, converged.
struct Warp {
  __device__ __forceinline__ bool leads() const { return thread_index() % 32 == 0; }
  __device__ __forceinline__ void sync() const { __syncwarp(); }
  /// What the leader says; what it acquired is visible to all.
  __device__ __forceinline__ bool agree(bool mine) const {
    const bool all = __all_sync(~0U, mine || !leads()) != 0;
    __syncwarp();
    return all;
  }
};

struct Cta {
  __device__ __forceinline__ bool leads() const { return thread_index() == 0; }
  __device__ __forceinline__ void sync() const { __syncthreads(); }
  __device__ __forceinline__ bool agree(bool mine) const {
    return __syncthreads_and(static_cast<int>(mine || !leads())) != 0;
  }
};

}  // namespace mkernel::kernels

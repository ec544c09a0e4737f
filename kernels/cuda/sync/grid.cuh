// Where a thread stands in its CTA and a CTA in its grid, whatever their dimensions.
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

}  // namespace mkernel::kernels

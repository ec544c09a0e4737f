// Sums over the lanes of a warp.
#pragma once

#include <cstdint>

namespace mkernel::kernels {

/// One warp: the sum over this lane and those before it.
__device__ __forceinline__ std::int32_t warp_sum_up_to(std::int32_t sum) {
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::int32_t other = __shfl_up_sync(~0U, sum, step);
    if (lane >= step) sum += other;
  }
  return sum;
}

}  // namespace mkernel::kernels

// How warps of a launch share units of work: each takes the next one as soon as it has time.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/global.cuh"

namespace mkernel::kernels {

/// One warp: the next unit that nobody has.
__device__ __forceinline__ std::uint64_t claim_unit(std::uint64_t* next) {
  std::uint64_t unit = 0;
  if (threadIdx.x % 32 == 0) unit = ptx::atom_add_relaxed_gpu(next, 1);
  return __shfl_sync(~0U, unit, 0);
}

}  // namespace mkernel::kernels

// 16 bytes of summands in the io type, and their sums in fp32.
#pragma once

#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/cuda/gemm/sm90_element.cuh"

namespace mkernel::kernels {

template <DataType kType>
__device__ __forceinline__ void add_piece(float (&sum)[8], const uint4& piece) {
  const std::uint32_t packed[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = widen_pair<kType>(packed[i]);
    sum[2 * i] += two.x;
    sum[2 * i + 1] += two.y;
  }
}

template <DataType kType>
__device__ __forceinline__ uint4 round_piece(const float (&sum)[8]) {
  const auto narrow = [&](int i) { return narrow_pair<kType>(sum[i], sum[i + 1]); };
  return {narrow(0), narrow(2), narrow(4), narrow(6)};
}

}  // namespace mkernel::kernels

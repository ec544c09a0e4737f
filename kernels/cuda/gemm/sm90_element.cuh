// What the elements of a product's matrices are to the tensor cores, and how sums become elements again.
#pragma once

#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/cuda/ptx/shared.cuh"
#include "kernels/cuda/ptx/vector.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace mkernel::kernels {

constexpr ptx::WgmmaElement sm90_wgmma_element(DataType type) {
  return type == DataType::kBf16 ? ptx::WgmmaElement::kBf16 : ptx::WgmmaElement::kF16;
}

/// Two sums of neighbouring columns, rounded to nearest even; `low` comes first in memory.
template <DataType kType>
__device__ __forceinline__ std::uint32_t narrow_pair(float low, float high) {
  if constexpr (kType == DataType::kBf16) {
    return ptx::cvt_rn_bf16x2(low, high);
  } else {
    return ptx::cvt_rn_f16x2(low, high);
  }
}

/// What narrow_pair() has packed.
template <DataType kType>
__device__ __forceinline__ float2 widen_pair(std::uint32_t packed) {
  if constexpr (kType == DataType::kBf16) {
    return ptx::cvt_f32x2_bf16x2(packed);
  } else {
    return ptx::cvt_f32x2_f16x2(packed);
  }
}

}  // namespace mkernel::kernels

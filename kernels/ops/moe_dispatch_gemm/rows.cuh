// Rows of tokens: copied, and multiplied by a weight.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/cuda/gemm/sm90_element.cuh"
#include "kernels/cuda/ptx/vector.cuh"
#include "kernels/ops/moe_dispatch_gemm/parameters.h"

namespace mkernel::kernels {

/// A warp copies whole 16 bytes, several of each lane under way.
__device__ __forceinline__ void moe_copy_row(std::byte* to, const std::byte* from, std::int32_t bytes) {
  constexpr std::int32_t kAtOnce = 8, kLane = 16, kWarp = 32 * kLane;
  std::int32_t at = static_cast<std::int32_t>(threadIdx.x) % 32 * kLane;
  for (; at + (kAtOnce - 1) * kWarp < bytes; at += kAtOnce * kWarp) {
    uint4 values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) values[i] = ptx::ld_once_v4(from + at + i * kWarp);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) ptx::st_v4(to + at + i * kWarp, values[i]);
  }
  for (; at < bytes; at += kWarp) ptx::st_v4(to + at, ptx::ld_once_v4(from + at));
}

/// The same, each element times `weight` and rounded.
template <DataType kType>
__device__ __forceinline__ void moe_scale_row(std::byte* to, const std::byte* from, std::int32_t bytes,
                                              float weight) {
  const auto scale = [weight](std::uint32_t packed) {
    const float2 values = widen_pair<kType>(packed);
    return narrow_pair<kType>(weight * values.x, weight * values.y);
  };
#pragma unroll 4
  for (std::int32_t at = static_cast<std::int32_t>(threadIdx.x) % 32 * 16; at < bytes; at += 32 * 16) {
    const uint4 values = ptx::ld_once_v4(from + at);
    ptx::st_v4(to + at, {scale(values.x), scale(values.y), scale(values.z), scale(values.w)});
  }
}

/// A row as its expert takes it.
template <DataType kType>
__device__ __forceinline__ void moe_write_row(const MoeParameters& p, std::byte* to, const std::byte* from,
                                              float weight) {
  const auto bytes = static_cast<std::int32_t>(p.plan.row_bytes);
  if (p.weights_on_input) {
    moe_scale_row<kType>(to, from, bytes, weight);
  } else {
    moe_copy_row(to, from, bytes);
  }
}

}  // namespace mkernel::kernels

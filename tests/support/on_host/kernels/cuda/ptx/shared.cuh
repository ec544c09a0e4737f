// Stands in for kernels/cuda/ptx/shared.cuh (tests/support/on_host/cuda_names.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/memory/convert.h"
#include "tests/support/on_host/sm90.h"

namespace mkernel::kernels::ptx {

inline void stmatrix_x4(std::uint32_t row, std::uint32_t m0, std::uint32_t m1, std::uint32_t m2,
                        std::uint32_t m3) {
  const std::uint64_t* rows = mkernel::test::host_exchange(~0U, row);
  const std::uint32_t lane = threadIdx.x % 32, values[] = {m0, m1, m2, m3};
  for (std::uint32_t matrix = 0; matrix < 4; ++matrix) {
    const auto at = static_cast<std::uint32_t>(rows[8 * matrix + lane / 4]) + lane % 4 * 4;
    std::memcpy(mkernel::test::host_shared_at(at), &values[matrix], 4);
  }
}
inline uint4 ld_shared_v4(std::uint32_t address) {
  uint4 value;
  std::memcpy(&value, mkernel::test::host_shared_at(address), sizeof value);
  return value;
}
inline float4 ld_shared_f32x4(std::uint32_t address) {
  float4 value;
  std::memcpy(&value, mkernel::test::host_shared_at(address), sizeof value);
  return value;
}
inline float2 ld_shared_f32x2(std::uint32_t address) {
  float2 value;
  std::memcpy(&value, mkernel::test::host_shared_at(address), sizeof value);
  return value;
}
inline void st_shared_f32x4(std::uint32_t address, const float4& value) {
  std::memcpy(mkernel::test::host_shared_at(address), &value, sizeof value);
}
inline void st_shared_f32(std::uint32_t address, float value) {
  std::memcpy(mkernel::test::host_shared_at(address), &value, sizeof value);
}
inline void st_async_f32x4(std::uint32_t address, const float4& value, std::uint32_t barrier) {
  mkernel::test::host_store_shared(address, value, barrier);
}
inline void st_shared_cluster_v4(std::uint32_t address, const uint4& value) {
  std::memcpy(mkernel::test::host_shared_at(address), &value, sizeof value);
}
inline std::uint32_t atom_add_acq_rel_cta_shared(std::uint32_t address, std::uint32_t value) {
  return atomicAdd(reinterpret_cast<std::uint32_t*>(mkernel::test::host_shared_at(address)), value);
}
/// Of every NaN a GPU makes the same one.
inline std::uint32_t cvt_rn(DataType type, float low, float high) {
  const float values[] = {low, high};
  std::uint16_t packed[2];
  narrow(type, values, packed, 2);
  for (int i = 0; i < 2; ++i)
    if (std::isnan(values[i])) packed[i] = 0x7FFF;
  return packed[0] | std::uint32_t{packed[1]} << 16;
}
inline std::uint32_t cvt_rn_bf16x2(float low, float high) {
  return cvt_rn(DataType::kBf16, low, high);
}
inline std::uint32_t cvt_rn_f16x2(float low, float high) {
  return cvt_rn(DataType::kF16, low, high);
}

inline float swiglu_approx(float gate, float up) {
  return gate / (1 + std::exp(-gate)) * up;
}

}  // namespace mkernel::kernels::ptx

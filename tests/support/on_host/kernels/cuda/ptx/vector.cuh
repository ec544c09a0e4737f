// Stands in for kernels/cuda/ptx/vector.cuh (tests/support/on_host/cuda_names.h).
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/memory/convert.h"
#include "tests/support/on_host/cuda_names.h"

namespace mkernel::kernels::ptx {

inline uint4 ld_once_v4(const void* global) {
  uint4 value;
  std::memcpy(&value, global, sizeof value);
  return value;
}
inline void st_v4(void* global, const uint4& value) {
  std::memcpy(global, &value, sizeof value);
}
inline void st_v2(void* global, std::uint32_t low, std::uint32_t high) {
  const std::uint32_t words[] = {low, high};
  std::memcpy(global, words, sizeof words);
}
inline float2 cvt_f32x2_bf16x2(std::uint32_t packed) {
  return {bf16_to_float(static_cast<std::uint16_t>(packed)),
          bf16_to_float(static_cast<std::uint16_t>(packed >> 16))};
}
inline float2 cvt_f32x2_f16x2(std::uint32_t packed) {
  return {f16_to_float(static_cast<std::uint16_t>(packed)),
          f16_to_float(static_cast<std::uint16_t>(packed >> 16))};
}

}  // namespace mkernel::kernels::ptx

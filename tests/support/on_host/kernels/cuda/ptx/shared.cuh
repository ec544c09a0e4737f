// Stands in for kernels/cuda/ptx/shared.cuh (tests/support/on_host/cuda_names.h): the conversions alone.
#pragma once

#include <cstdint>

#include "kernels/cpu/memory/convert.h"

namespace mkernel::kernels::ptx {

inline std::uint32_t cvt_rn(DataType type, float low, float high) {
  const float values[] = {low, high};
  std::uint16_t packed[2];
  narrow(type, values, packed, 2);
  return packed[0] | std::uint32_t{packed[1]} << 16;
}
inline std::uint32_t cvt_rn_bf16x2(float low, float high) {
  return cvt_rn(DataType::kBf16, low, high);
}
inline std::uint32_t cvt_rn_f16x2(float low, float high) {
  return cvt_rn(DataType::kF16, low, high);
}

}  // namespace mkernel::kernels::ptx

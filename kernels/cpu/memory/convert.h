// bf16 and fp16 <-> fp32. Narrowing rounds to nearest, ties to even; NaN stays NaN; overflow becomes
// infinity. The array functions give bit for bit what the scalar functions give.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/base/types.h"

namespace mkernel::kernels {

/// Half a unit in the last place relative to the value: the error of one narrowing (normal numbers).
constexpr double rounding_unit(DataType type) {
  return type == DataType::kBf16 ? 1.0 / 256 : 1.0 / 2048;
}

inline float bf16_to_float(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

inline std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40U : rounded);
}

float f16_to_float(std::uint16_t value);
std::uint16_t float_to_f16(float value);

/// `count` elements of `type` at `in` to fp32 at `out`. The ranges must not overlap.
void widen(DataType type, const void* in, float* out, std::size_t count);

/// `count` fp32 at `in` to elements of `type` at `out`. The ranges must not overlap.
void narrow(DataType type, const float* in, void* out, std::size_t count);

}  // namespace mkernel::kernels

// Seeded random tensors in an io type, and the same values for a reference.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cpu/memory/convert.h"
#include "mkernel/ops.h"

namespace mkernel::test {

/// `count` values, uniform in [-scale, scale], rounded to `dtype`: bits as the operations take them.
inline std::vector<std::uint16_t> random_tensor(std::int64_t count, DataType dtype, std::uint64_t seed,
                                                float scale = 1.0F) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> value(-scale, scale);
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(count));
  for (auto& element : bits) {
    const float drawn = value(random);
    kernels::narrow(dtype, &drawn, &element, 1);
  }
  return bits;
}

inline double value_of(DataType dtype, std::uint16_t bits) {
  return dtype == DataType::kBf16 ? kernels::bf16_to_float(bits) : kernels::f16_to_float(bits);
}

/// A NaN in both io types: what outputs are poisoned with.
inline constexpr std::uint16_t kPoison = 0x7fff;

}  // namespace mkernel::test

// Seeded random tensors in an io type, and the same values for a reference.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cpu/memory/convert.h"
#include "mkernel/ops.h"

namespace mkernel::test {

/// Uniform in [-scale, scale), a multiple of 2^-23 of it. The distribution of the standard library takes a
/// logarithm for each value.
inline float uniform(std::mt19937_64& random, float scale) {
  return (static_cast<float>(random() >> 40) * 0x1p-23F - 1.0F) * scale;
}

/// `count` values, uniform in [-scale, scale), rounded to `dtype`: bits as the operations take them.
inline std::vector<std::uint16_t> random_tensor(std::int64_t count, DataType dtype, std::uint64_t seed,
                                                float scale = 1.0F) {
  std::mt19937_64 random(seed);
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(count));
  for (auto& element : bits) {
    const float drawn = uniform(random, scale);
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

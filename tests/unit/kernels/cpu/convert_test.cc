// bf16 and fp16 conversion against fp64 arithmetic, for every bit pattern and around every tie.
#include "kernels/cpu/memory/convert.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

using namespace mkernel;
using namespace mkernel::kernels;

namespace {

struct Format {
  DataType type;
  int mantissa_bits;
  int exponent_bits;
};
constexpr Format kFormats[] = {{DataType::kBf16, 7, 8}, {DataType::kF16, 10, 5}};

/// The value of a finite bit pattern, from the definition of the format.
double decode(const Format& format, std::uint16_t bits) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = (bits >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const double fraction = std::ldexp(mantissa, -format.mantissa_bits);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

bool finite(const Format& format, std::uint16_t bits) {
  const int all = (1 << format.exponent_bits) - 1;
  return ((bits >> format.mantissa_bits) & all) != all;
}

float widen_one(DataType type, std::uint16_t bits) {
  return type == DataType::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
}
std::uint16_t narrow_one(DataType type, float value) {
  return type == DataType::kBf16 ? float_to_bf16(value) : float_to_f16(value);
}

}  // namespace

TEST_CASE("every 16-bit pattern widens to its value and comes back as itself") {
  for (const Format& format : kFormats) {
    for (std::uint32_t i = 0; i < 0x10000; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      const float wide = widen_one(format.type, bits);
      if (finite(format, bits)) {
        REQUIRE(static_cast<double>(wide) == decode(format, bits));
        REQUIRE(narrow_one(format.type, wide) == bits);
      } else if (std::isnan(wide)) {
        REQUIRE(std::isnan(widen_one(format.type, narrow_one(format.type, wide))));
      } else {
        REQUIRE(narrow_one(format.type, wide) == bits);
      }
    }
  }
}

TEST_CASE("narrowing rounds to nearest, ties to even, and overflows to infinity") {
  for (const Format& format : kFormats) {
    for (std::uint16_t bits = 0; finite(format, static_cast<std::uint16_t>(bits + 1)); ++bits) {
      const double low = decode(format, bits);
      const double high = decode(format, static_cast<std::uint16_t>(bits + 1));
      const auto tie = static_cast<float>((low + high) / 2);
      const std::uint16_t even = (bits & 1) == 0 ? bits : static_cast<std::uint16_t>(bits + 1);
      if (static_cast<double>(tie) != (low + high) / 2) continue;  // a bf16 subnormal: no fp32 in between
      REQUIRE(narrow_one(format.type, tie) == even);
      REQUIRE(narrow_one(format.type, std::nextafter(tie, 0.0F)) == bits);
      REQUIRE(narrow_one(format.type, std::nextafter(tie, INFINITY)) == bits + 1);
      REQUIRE(narrow_one(format.type, -tie) == (even | 0x8000));
    }
  }
  CHECK(float_to_f16(65519.996F) == 0x7bff);
  CHECK(float_to_f16(65520.0F) == 0x7c00);
  CHECK(float_to_f16(-1e30F) == 0xfc00);
  CHECK(float_to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
}

TEST_CASE("arrays convert bit for bit as single values do, at every length") {
  std::mt19937 random(5);
  for (const Format& format : kFormats) {
    for (std::size_t count : {0, 1, 7, 8, 9, 31, 1000}) {
      std::vector<std::uint16_t> bits(count), back(count);
      std::vector<float> wide(count);
      for (auto& value : bits) value = static_cast<std::uint16_t>(random());
      widen(format.type, bits.data(), wide.data(), count);
      for (std::size_t i = 0; i < count; ++i) {
        REQUIRE(std::bit_cast<std::uint32_t>(wide[i]) ==
                std::bit_cast<std::uint32_t>(widen_one(format.type, bits[i])));
        wide[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      }
      narrow(format.type, wide.data(), back.data(), count);
      for (std::size_t i = 0; i < count; ++i) REQUIRE(back[i] == narrow_one(format.type, wide[i]));
    }
  }
}

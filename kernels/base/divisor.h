// Division by numbers that the host knows before a launch. Pure functions, the same on host and device.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// A number >= 0 to divide numbers >= 0 by: a product and a shift, where the device needs thirty instructions
/// that wait for each other (a role that divides three times before its first load starts half a
/// microsecond late). By 0 nobody may divide.
class Divisor {
 public:
  constexpr Divisor(std::int32_t value = 1) : value_(value) {
    if (value <= 0) return;
    // With 2^s the smallest power of two not below `value`, 2^(31 + s) / value fits 32 bits. Rounded up it is
    // too large by less than 1, and the quotient of a numerator below 2^31 by less than 2^-s <= 1 / value.
    const auto divisor = static_cast<std::uint32_t>(value);
    shift_ = 31 + static_cast<std::int32_t>(std::bit_width(divisor - 1));
    multiplier_ = static_cast<std::uint32_t>(((std::uint64_t{1} << shift_) + divisor - 1) / divisor);
  }

  MK_HOST_DEVICE constexpr operator std::int32_t() const { return value_; }

  friend MK_HOST_DEVICE constexpr std::int32_t operator/(std::int32_t numerator, const Divisor& divisor) {
    const std::uint64_t product = std::uint64_t{static_cast<std::uint32_t>(numerator)} * divisor.multiplier_;
    return static_cast<std::int32_t>(product >> divisor.shift_);
  }
  friend MK_HOST_DEVICE constexpr std::int32_t operator%(std::int32_t numerator, const Divisor& divisor) {
    return numerator - numerator / divisor * divisor.value_;
  }
  /// Nothing else is divided: a fraction or 64 bits would be cut to 32 bits first.
  template <class Other>
  requires std::is_arithmetic_v<Other>
  friend void operator/(Other, const Divisor&) = delete;
  template <class Other>
  requires std::is_arithmetic_v<Other>
  friend void operator%(Other, const Divisor&) = delete;

  /// numerator / *this, rounded up.
  MK_HOST_DEVICE constexpr std::int32_t ceil(std::int32_t numerator) const {
    const std::int32_t whole = numerator / *this;
    return whole + (numerator > whole * value_ ? 1 : 0);
  }

 private:
  std::int32_t value_;
  std::int32_t shift_ = 0;
  std::uint32_t multiplier_ = 0;
};

}  // namespace mkernel::kernels

// 64-bit identities (boot id, group instance) as an operator reads them.
#pragma once

#include <cstdint>
#include <string>

namespace mkernel::base {

/// All 16 digits, without a prefix: "00000000000000ff".
inline std::string hex(std::uint64_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(value >> shift) & 15];
  return text;
}

}  // namespace mkernel::base

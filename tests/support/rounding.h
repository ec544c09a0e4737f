// What references assume of rounding.
#pragma once

namespace mkernel::test {

inline constexpr double kFloatUnit = 0x1p-24;  ///< fp32 rounds by at most so much of a value

}  // namespace mkernel::test

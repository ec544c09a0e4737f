// How plans cut what they move. Pure.
#pragma once

#include <cstdint>

namespace mkernel::kernels {

/// Payload that a put aims at: large enough for the copy engines and for EFA, small enough to overlap.
inline constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t by) {
  return (value + by - 1) / by;
}

}  // namespace mkernel::kernels

// How plans cut what they move. Pure.
#pragma once

#include <cstdint>

#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Payload that a put aims at: large enough for the copy engines and for EFA, small enough to overlap.
inline constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t by) {
  return (value + by - 1) / by;
}

/// `bytes`, rounded up to whole lines of the L2: every part of a workspace begins with one.
MK_HOST_DEVICE constexpr std::uint64_t whole_lines(std::uint64_t bytes) {
  constexpr std::uint64_t kLine = 128;
  return (bytes + kLine - 1) / kLine * kLine;
}

}  // namespace mkernel::kernels

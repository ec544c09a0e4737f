// How the rows of a matrix are cut along their length, when a product may begin with the first part of a row
// while the others are still on their way. Pure functions, the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/base/divisor.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Parts begin at whole lines of 128 bytes (64 elements of 16 bits: one step of the product along k); the
/// last one may be shorter. 1 <= parts <= lines().
struct RowParts {
  static constexpr std::int64_t kLineBytes = 128;

  std::int64_t row_bytes = 0;
  Divisor parts;

  MK_HOST_DEVICE std::int32_t lines() const {
    return static_cast<std::int32_t>((row_bytes + kLineBytes - 1) / kLineBytes);
  }
  MK_HOST_DEVICE std::int32_t first_line(std::int32_t part) const { return lines() * part / parts; }
  MK_HOST_DEVICE std::int64_t begin(std::int32_t part) const {
    return part == parts ? row_bytes : first_line(part) * kLineBytes;
  }
  MK_HOST_DEVICE std::int64_t bytes(std::int32_t part) const { return begin(part + 1) - begin(part); }
};

}  // namespace mkernel::kernels

// The order in which row blocks of a gathered matrix arrive, which is the order in which they are computed.
// Pure functions, the same on host and device.
#pragma once

#include <cstdint>

#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Every source has rows in blocks of equal height (the last may be lower). Own blocks first: they are there;
/// then the j-th block of every other source in turn, because all sources push at the same time and at the
/// same pace, each beginning with its first rows. Sources with fewer blocks than the largest have empty ones
/// at their end.
struct ArrivalSteps {
  struct Place {
    std::int32_t source = 0;
    std::int32_t block = 0;  ///< of the source's rows
  };

  std::int32_t rank = 0;
  std::int32_t world = 1;
  std::int32_t own_blocks = 1;
  std::int32_t blocks = 1;  ///< of the source that has most

  MK_HOST_DEVICE std::int32_t steps() const { return own_blocks + (world - 1) * blocks; }
  MK_HOST_DEVICE Place place(std::int32_t step) const {
    if (step < own_blocks) return {rank, step};
    const std::int32_t remote = step - own_blocks;
    const std::int32_t source = rank + 1 + remote % (world - 1);
    return {source < world ? source : source - world, remote / (world - 1)};
  }
};

}  // namespace mkernel::kernels

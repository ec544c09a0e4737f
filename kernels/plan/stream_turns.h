// The order in which a rank pushes chunks of several streams of rows on. Pure functions, the same on host and
// device.
#pragma once

#include <cstdint>

#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// First come the chunks of stream 0, the rank's own; then the j-th chunks of all other streams in turn.
struct StreamTurns {
  struct Turn {
    std::int32_t stream, chunk;
  };

  std::int32_t own_chunks = 0;
  std::int32_t others = 0;       ///< streams after the first
  std::int32_t most_chunks = 0;  ///< of one of these: one with fewer skips its turn

  MK_HOST_DEVICE std::int32_t turns() const { return own_chunks + others * most_chunks; }
  MK_HOST_DEVICE Turn turn(std::int32_t index) const {
    if (index < own_chunks) return {0, index};
    index -= own_chunks;
    return {1 + index % others, index / others};
  }
};

}  // namespace mkernel::kernels

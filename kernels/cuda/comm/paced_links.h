// Links of a node that are modelled, for ranks that share a GPU: its memory is faster than links.
#pragma once

#include <cstdint>

namespace mkernel::kernels {

/// What a rank sends to others of its node takes the links one after the other, and is there a little later.
/// That several ranks send to one at a time is not modelled. All zero: nothing is.
struct PacedLinks {
  std::uint64_t* free_ns;     ///< device memory: when the links will have sent all that they were given
  std::uint32_t fs_per_byte;  ///< femtoseconds; 0: the links are not modelled
  std::uint32_t latency_ns;
  std::uint32_t most_ns;  ///< the longest that a thread waits; below 2^31
};

}  // namespace mkernel::kernels

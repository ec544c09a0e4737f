// Links of a node that are modelled, for ranks that share a GPU: its memory is faster than links.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/plan/machine.h"

namespace mkernel::kernels {

/// What a rank sends to others of its node takes the links one after the other, and is there a little later.
/// That several ranks send to one at a time is not modelled. All zero: nothing is.
struct PacedLinks {
  std::uint64_t* free_ns;     ///< device memory: when the links will have sent all that they were given
  std::uint32_t fs_per_byte;  ///< femtoseconds; 0: the links are not modelled
  std::uint32_t latency_ns;
  std::uint32_t most_ns;  ///< the longest that a thread waits
};

/// Of a machine with Machine::paced_links. `free_ns`: zeroed once, the rank's own.
inline PacedLinks paced_links_of(const Machine& machine, std::uint64_t* free_ns) {
  constexpr double kSlowest = 4e9;  // femtoseconds a byte, 250 kB a second
  return {.free_ns = free_ns,
          .fs_per_byte = static_cast<std::uint32_t>(std::clamp(1e15 / machine.paced_links, 1.0, kSlowest)),
          .latency_ns = static_cast<std::uint32_t>(machine.paced_latency * 1e9),
          .most_ns = 1'000'000'000};
}

}  // namespace mkernel::kernels

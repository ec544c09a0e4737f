// The modelled links of a machine. Host side.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/comm/paced_links.h"
#include "kernels/plan/machine.h"

namespace mkernel::kernels {

/// Of a machine with Machine::paced_links. `free_ns`: zeroed once, the rank's own.
inline PacedLinks paced_links_of(const Machine& machine, std::uint64_t* free_ns) {
  constexpr double kSlowest = 4e9;  // femtoseconds a byte, 250 kB a second
  return {.free_ns = free_ns,
          .fs_per_byte = static_cast<std::uint32_t>(std::clamp(1e15 / machine.paced_links, 1.0, kSlowest)),
          .latency_ns = static_cast<std::uint32_t>(machine.paced_latency * 1e9),
          .most_ns = 1'000'000'000};
}

}  // namespace mkernel::kernels

// The kernel of gpu_clock.h: answers with the GPU's global timer.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/global.cuh"

namespace mkernel::kernels {

inline constexpr std::uint64_t kClockRounds = 32;
inline constexpr std::uint64_t kClockGiveUpNs = 1'000'000'000;

/// Between gpu_clock_to_monotonic() and its kernel, in pinned host memory.
struct ClockExchange {
  std::uint64_t asked;  ///< rounds that the host has begun
  std::uint64_t answer[kClockRounds];
};

inline __global__ void answer_with_clock(ClockExchange* exchange) {
  const std::uint64_t begin = ptx::globaltimer();
  for (std::uint64_t round = 0; round < kClockRounds; ++round) {
    while (ptx::ld_acquire_sys(&exchange->asked) <= round) {
      if (ptx::globaltimer() - begin > kClockGiveUpNs) return;
    }
    ptx::st_release_sys(&exchange->answer[round], ptx::globaltimer());
  }
}

}  // namespace mkernel::kernels

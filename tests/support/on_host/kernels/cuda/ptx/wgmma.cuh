// Stands in for kernels/cuda/ptx/wgmma.cuh (tests/support/on_host/cuda_names.h).
#pragma once

#include <cstdint>

#include "tests/support/on_host/sm90.h"

namespace mkernel::kernels::ptx {

enum class WgmmaElement { kBf16, kF16 };
enum class WgmmaMajor { kK = 0, kMn = 1 };

inline std::uint64_t wgmma_descriptor_swizzle128(std::uint32_t shared, std::uint32_t leading,
                                                 std::uint32_t stride) {
  return static_cast<std::uint64_t>(stride >> 4) << 32 | static_cast<std::uint64_t>(leading >> 4) << 16 |
         (shared & 0x3ffffU) >> 4;
}
inline void wgmma_fence() {}
inline void wgmma_commit_group() {}
template <int kPending>
void wgmma_wait_group() {}

template <WgmmaElement kElement, WgmmaMajor kMajorB, int kSums>
void wgmma(float (&d)[kSums], std::uint64_t a, std::uint64_t b, bool accumulate) {
  mkernel::test::host_wgmma(d, 2 * kSums, a, b, accumulate, kElement == WgmmaElement::kBf16,
                            kMajorB == WgmmaMajor::kK);
}
template <WgmmaElement kElement, WgmmaMajor kMajorB>
void wgmma_m64n64k16(float (&d)[32], std::uint64_t a, std::uint64_t b, bool accumulate) {
  wgmma<kElement, kMajorB>(d, a, b, accumulate);
}
template <WgmmaElement kElement, WgmmaMajor kMajorB>
void wgmma_m64n128k16(float (&d)[64], std::uint64_t a, std::uint64_t b, bool accumulate) {
  wgmma<kElement, kMajorB>(d, a, b, accumulate);
}
template <WgmmaElement kElement, WgmmaMajor kMajorB>
void wgmma_m64n256k16(float (&d)[128], std::uint64_t a, std::uint64_t b, bool accumulate) {
  wgmma<kElement, kMajorB>(d, a, b, accumulate);
}

}  // namespace mkernel::kernels::ptx

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
inline void wgmma_commit_group() {
  mkernel::test::host_commit_products();
}
template <int kPending>
void wgmma_wait_group() {
  mkernel::test::host_wait_products(kPending);
}
template <int kSums>
void wgmma_pin(float (&)[kSums]) {}

template <WgmmaElement kElement, WgmmaMajor kMajorB, WgmmaMajor kMajorA, int kSums, class A>
void wgmma(float (&d)[kSums], const A& a, std::uint64_t b, bool accumulate) {
  mkernel::test::host_wgmma(
      d, {2 * kSums, kElement == WgmmaElement::kBf16, kMajorA == WgmmaMajor::kK, kMajorB == WgmmaMajor::kK},
      a, b, accumulate);
}
#define MK_WGMMA_FUNCTION(n, sums)                                                                   \
  template <WgmmaElement kElement, WgmmaMajor kMajorB, WgmmaMajor kMajorA = WgmmaMajor::kK, class A> \
  void wgmma_m64n##n##k16(float(&d)[sums], const A& a, std::uint64_t b, bool accumulate) {           \
    wgmma<kElement, kMajorB, kMajorA>(d, a, b, accumulate);                                          \
  }
MK_WGMMA_FUNCTION(16, 8)
MK_WGMMA_FUNCTION(32, 16)
MK_WGMMA_FUNCTION(64, 32)
MK_WGMMA_FUNCTION(128, 64)
MK_WGMMA_FUNCTION(160, 80)
MK_WGMMA_FUNCTION(192, 96)
MK_WGMMA_FUNCTION(256, 128)
#undef MK_WGMMA_FUNCTION

}  // namespace mkernel::kernels::ptx

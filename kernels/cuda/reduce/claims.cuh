// Work that warps take as they have time.
#pragma once

#include <cstdint>

namespace mkernel::kernels {

/// Whole warp: calls `work(unit)` for the units of this launch that it claims, in ascending order over all
/// warps, until there are no more or work() returns false. `claimed` counts claims over all launches; every
/// one of the `warps` that call this in a launch claims once more than there is, so that each launch raises
/// the count by as much and nothing needs resetting.
template <class Work>
__device__ __forceinline__ void claim_units(std::uint64_t* claimed, std::uint64_t epoch, std::uint32_t units,
                                            std::uint32_t warps, const Work& work) {
  const std::uint64_t begin = epoch * (units + warps);
  const auto claim = [&] {
    return threadIdx.x % 32 == 0
               ? static_cast<std::uint32_t>(atomicAdd(reinterpret_cast<unsigned long long*>(claimed), 1ULL) -
                                            begin)
               : 0U;
  };
  std::uint32_t next = claim();
  for (;;) {
    const std::uint32_t unit = __shfl_sync(~0U, next, 0);
    if (unit >= units) return;
    next = claim();  // under way while this one is worked on
    if (!work(unit)) return;
  }
}

}  // namespace mkernel::kernels

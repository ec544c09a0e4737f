// Work that warps take as they have time.
#pragma once

#include <cstdint>

namespace mkernel::kernels {

/// Whole warp: calls `work(unit)` for the units of this launch that it claims, in ascending order over all
/// warps, until there are no more or work() returns false. `claimed` counts claims over all launches; every
/// one of the `warps` that call this in a launch claims once more than there is, so that each launch raises
/// the count by as much and nothing needs resetting. `ahead`: the next claim is under way while a unit is
/// worked on; where units are few, a warp would hold a second one while others have none.
template <class Work>
__device__ __forceinline__ void claim_units(std::uint64_t* claimed, std::uint64_t epoch, std::uint32_t units,
                                            std::uint32_t warps, bool ahead, const Work& work) {
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
    if (ahead) next = claim();
    if (!work(unit)) return;
    if (!ahead) next = claim();
  }
}

/// Of a kernel with this Config: those of many rows have units enough, and do not ask.
template <class Config>
__device__ __forceinline__ bool claims_ahead(std::uint32_t units, std::uint32_t warps) {
  return !Config::kSharedTiles || units > warps;
}

}  // namespace mkernel::kernels

// Work that warps take as they have time, and who they are.
#pragma once

#include <cstdint>

#include "kernels/cuda/reduce/tile_reduce_parameters.h"

namespace mkernel::kernels {

/// CTAs of a launch that multiply.
__device__ __forceinline__ std::uint32_t multiplying_ctas(const TileReduceParameters& p) {
  return gridDim.x - p.reduce_ctas;
}

/// Multiplying warps of a launch.
template <class Config>
__device__ __forceinline__ std::uint32_t multiplying_warps(const TileReduceParameters& p) {
  return multiplying_ctas(p) * Config::kMultiplyWarpgroups * 4;
}

/// Of a kernel with this Config: those of many rows have units enough, and do not ask.
template <class Config>
__device__ __forceinline__ bool claims_ahead(std::uint32_t units, std::uint32_t warps) {
  return !Config::kSharedTiles || units > warps;
}

/// Units of other kinds that the same warps have in a launch, when all kinds are numbered together.
struct OtherUnits {
  std::uint32_t before = 0, behind = 0;
};

/// Whether each of `units` has a multiplying warp of its own. They need not be claimed then: a thousand warps
/// that claim at once wait a microsecond for each other, and twice so at the end of a launch. Where CTAs have
/// several tiles they are claimed, for units of the first tiles should not wait for the last.
template <class Config>
__device__ __forceinline__ bool given_out(const TileReduceParameters& p, std::uint32_t units) {
  if constexpr (!Config::kSharedTiles) return false;
  return p.units.others == 0 && units <= multiplying_warps<Config>(p) &&
         static_cast<std::uint32_t>(p.shared.tiles()) * Config::kCluster <= multiplying_ctas(p);
}

/// Whole warp: calls `work(unit)` for the units of this launch that it claims, in ascending order over all
/// warps, until there are no more or work() returns false. `claimed` counts claims over all launches; every
/// one of the `warps` that call this in a launch claims once more than there is, so that each launch raises
/// the count by as much and nothing needs resetting. The next claim is under way while a unit is worked on
/// (`claims_ahead()`); where units are few, a warp would hold a second one while others have none. Units that
/// are given out go by number, the first ones to a warp of each CTA, and nothing is counted.
template <class Config, class Work>
__device__ __forceinline__ void share_units(const TileReduceParameters& p, std::uint64_t* claimed,
                                            std::uint64_t epoch, std::uint32_t units, std::uint32_t warps,
                                            const OtherUnits& others, const Work& work) {
  const bool ahead = claims_ahead<Config>(units, warps);
  const bool given = given_out<Config>(p, others.before + units + others.behind);
  const std::uint64_t begin = epoch * (units + warps);
  const auto claim = [&] {
    return threadIdx.x % 32 == 0
               ? static_cast<std::uint32_t>(atomicAdd(reinterpret_cast<unsigned long long*>(claimed), 1ULL) -
                                            begin)
               : 0U;
  };
  std::uint32_t next = units;
  if (!given) {
    next = claim();
  } else if (static_cast<std::int32_t>(blockIdx.x) >= p.reduce_ctas) {
    const std::uint32_t warp = threadIdx.x / 32 % (Config::kMultiplyWarpgroups * 4);
    // Huge where the number is one of the kinds before.
    next = warp * multiplying_ctas(p) + blockIdx.x - p.reduce_ctas - others.before;
  }
  for (;;) {
    const std::uint32_t unit = __shfl_sync(~0U, next, 0);
    if (unit >= units) return;
    if (ahead && !given) next = claim();
    if (!work(unit) || given) return;
    if (!ahead) next = claim();
  }
}

}  // namespace mkernel::kernels

// How the tiles of a fused kernel are dealt to its computing CTAs.
#pragma once

#include <cstdint>

#include "kernels/schedule/raster.h"

namespace mkernel::kernels {

/// The cluster tiles of this CTA's cluster: every (number of clusters)-th one of the raster, when CTAs
/// `first_cta` .. compute. Stacked clusters only. Nothing is kept: the multiplying warps would carry it
/// through their products, and have no register to spare.
template <class Config>
struct Sm90Share {
  static_assert(Config::kClusterColumns == 1);

  static __device__ __forceinline__ int tiles(const Raster& raster, std::int32_t first_cta) {
    return (raster.tiles() - cluster(first_cta) + clusters(first_cta) - 1) / clusters(first_cta);
  }
  /// Of the i-th tile of this CTA's.
  static __device__ __forceinline__ RasterPlace place(const Raster& raster, std::int32_t first_cta, int i) {
    return raster.place(cluster(first_cta) + i * clusters(first_cta));
  }
  /// First row of this CTA's tile in block `block` of a cluster's rows.
  static __device__ __forceinline__ std::int32_t first_row(std::int32_t block) {
    const auto in_cluster = static_cast<std::int32_t>(blockIdx.x % Config::kCluster);
    return (block * Config::kCluster + in_cluster) * Config::kTileM;
  }

 private:
  static __device__ __forceinline__ std::int32_t cluster(std::int32_t first_cta) {
    return (static_cast<std::int32_t>(blockIdx.x) - first_cta) / Config::kCluster;
  }
  static __device__ __forceinline__ std::int32_t clusters(std::int32_t first_cta) {
    return (static_cast<std::int32_t>(gridDim.x) - first_cta) / Config::kCluster;
  }
};

}  // namespace mkernel::kernels

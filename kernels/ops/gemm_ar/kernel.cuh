// GEMM+AR's kernel for one tile; included by one file per tile, so that they compile side by
// side.
#pragma once

#include <type_traits>

#include "kernels/cuda/gemm/with_tile.h"
#include "kernels/cuda/launch/cooperative_launch.cuh"
#include "kernels/ops/gemm_ar/parameters.h"
#include "kernels/ops/gemm_ar/roles.cuh"

namespace mkernel::kernels {

template <Sm90Tile kTile, bool kShared>
CooperativeKernel gemm_ar_kernel_of(const GemmShape& shape) {
  return with_types(shape, [&]<DataType kInput, Layout kLayoutB>() {
    using Config = std::conditional_t<kShared, SharedTilesConfig<kTile, kInput, kLayoutB>,
                                      TileReduceConfig<kTile, kInput, kLayoutB>>;
    return cooperative_kernel<Config>(&gemm_ar_kernel<Config>, sm90_shared_bytes<Config>());
  });
}

}  // namespace mkernel::kernels

// AG+GEMM's kernel for one tile and shape of clusters; included by one file for each, so that they compile
// side by side.
#pragma once

#include <algorithm>

#include "kernels/cuda/gemm/with_tile.h"
#include "kernels/cuda/launch/cooperative_launch.cuh"
#include "kernels/ops/ag_gemm/roles.cuh"

namespace mkernel::kernels {

template <Sm90Tile kTile, Sm90Cluster kCluster>
CooperativeKernel ag_gemm_kernel_of(const GemmShape& shape) {
  return with_types(shape, [&]<DataType kInput, Layout kLayoutB>() {
    using Config = AgGemmConfig<kTile, kInput, kLayoutB, kCluster>;
    return cooperative_kernel<Config>(
        &ag_gemm_kernel<Config>, std::max(sm90_shared_bytes<Config>(), sizeof(FanOutShared<FanOutPlan>)));
  });
}

}  // namespace mkernel::kernels

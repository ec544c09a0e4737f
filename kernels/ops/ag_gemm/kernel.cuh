// AG+GEMM's kernel for one tile; included by one file per tile, so that they compile side by
// side.
#pragma once

#include <algorithm>

#include "kernels/cuda/launch/cooperative_launch.cuh"
#include "kernels/ops/ag_gemm/roles.cuh"

namespace mkernel::kernels {

/// The schedule's arithmetic needs more registers in the loading thread than a plain product's.
template <Sm90Tile kTile, DataType kInput, Layout kLayoutB>
struct AgGemmConfig : Sm90Config<kTile, kInput, kLayoutB, matrix_element(kInput)> {
  static constexpr int kProducerRegisters = 56;
  static constexpr int kMultiplyRegisters = 224;
};

template <Sm90Tile kTile>
CooperativeKernel ag_gemm_kernel_of(const GemmShape& shape) {
  return with_types(shape, [&]<DataType kInput, Layout kLayoutB>() {
    using Config = AgGemmConfig<kTile, kInput, kLayoutB>;
    return cooperative_kernel<Config>(&ag_gemm_kernel<Config>,
                                      std::max(sm90_shared_bytes<Config>(), sizeof(FanOutShared)));
  });
}

}  // namespace mkernel::kernels

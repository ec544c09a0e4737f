// The launch of GEMM+RS's kernel for one tile; included by one file per tile, so that they compile side by
// side.
#pragma once

#include "kernels/ops/cooperative_launch.cuh"
#include "kernels/ops/gemm_rs/cuda_parameters.h"
#include "kernels/ops/gemm_rs/roles.cuh"

namespace mkernel::kernels {

template <Sm90Tile kTile>
Status launch_gemm_rs(const GemmShape& shape, const TileReduceParameters& parameters, std::int32_t ctas,
                      CUstream_st* stream) {
  return with_types(shape, [&]<DataType kInput, Layout kLayoutB>() {
    using Config = TileReduceConfig<kTile, kInput, kLayoutB>;
    return launch_cooperative<Config>(&gemm_rs_kernel<Config>, parameters, ctas, sm90_shared_bytes<Config>(),
                                      stream, "gemm_rs");
  });
}

}  // namespace mkernel::kernels

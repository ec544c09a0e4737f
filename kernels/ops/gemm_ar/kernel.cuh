// The launch of GEMM+AR's kernel for one tile; included by one file per tile, so that they compile side by
// side.
#pragma once

#include "kernels/ops/cooperative_launch.cuh"
#include "kernels/ops/gemm_ar/cuda_parameters.h"
#include "kernels/ops/gemm_ar/roles.cuh"

namespace mkernel::kernels {

template <Sm90Tile kTile>
Status launch_gemm_ar(const GemmShape& shape, const GemmArParameters& parameters, std::int32_t ctas,
                      CUstream_st* stream) {
  return with_types(shape, [&]<DataType kInput, Layout kLayoutB>() {
    using Config = TileReduceConfig<kTile, kInput, kLayoutB>;
    return launch_cooperative<Config>(&gemm_ar_kernel<Config>, parameters, ctas, sm90_shared_bytes<Config>(),
                                      stream, "gemm_ar");
  });
}

}  // namespace mkernel::kernels

// The launch of GEMM+RS's kernel for one tile; included by one file per tile, so that they compile side by
// side.
#pragma once

#include "kernels/ops/cooperative_launch.cuh"
#include "kernels/ops/gemm_rs/roles.cuh"

namespace mkernel::kernels {

/// The schedule's arithmetic needs more registers in the loading thread than a plain product's.
template <Sm90Tile kTile, DataType kInput, Layout kLayoutB>
struct GemmRsConfig : Sm90Config<kTile, kInput, kLayoutB, matrix_element(kInput)> {
  static constexpr int kProducerRegisters = 56;
  static constexpr int kMultiplyRegisters = 224;
};

template <Sm90Tile kTile>
Status launch_gemm_rs(const GemmShape& shape, const GemmRsParameters& parameters, std::int32_t ctas,
                      CUstream_st* stream) {
  return with_types(shape, [&]<DataType kInput, Layout kLayoutB>() {
    using Config = GemmRsConfig<kTile, kInput, kLayoutB>;
    return launch_cooperative<Config>(&gemm_rs_kernel<Config>, parameters, ctas, sm90_shared_bytes<Config>(),
                                      stream, "gemm_rs");
  });
}

}  // namespace mkernel::kernels

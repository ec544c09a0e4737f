// The launch of AG+GEMM's kernel for one tile; included by one file per tile, so that they compile side by
// side.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/memory/cuda_error.h"
#include "kernels/ops/ag_gemm/roles.cuh"

namespace mkernel::kernels {

/// The schedule's arithmetic needs more registers in the loading thread than a plain product's.
template <Sm90Tile kTile, DataType kInput, Layout kLayoutB>
struct AgGemmConfig : Sm90Config<kTile, kInput, kLayoutB, matrix_element(kInput)> {
  static constexpr int kProducerRegisters = 56;
  static constexpr int kMultiplyRegisters = 224;
};

template <class Config>
Status launch_ag_gemm_kernel(const AgGemmParameters& parameters, std::int32_t ctas, CUstream_st* stream) {
  constexpr auto kBytes = static_cast<int>(std::max(sm90_shared_bytes<Config>(), sizeof(FanOutShared)));
  const auto kernel = &ag_gemm_kernel<Config>;
  MK_RETURN_IF_ERROR(
      cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                  "ag_gemm: shared memory"));
  // Cooperative: CTAs wait for each other, so all of them must be resident, or none is started.
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {Config::kCluster, 1, 1};
  attributes[1].id = cudaLaunchAttributeCooperative;
  attributes[1].val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ctas));
  config.blockDim = dim3(Config::kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cuda_status(cudaLaunchKernelEx(&config, kernel, parameters), "ag_gemm: launch");
}

template <Sm90Tile kTile>
Status launch_ag_gemm(const GemmShape& shape, const AgGemmParameters& parameters, std::int32_t ctas,
                      CUstream_st* stream) {
  const auto with = [&]<DataType kInput, Layout kLayoutB>() {
    return launch_ag_gemm_kernel<AgGemmConfig<kTile, kInput, kLayoutB>>(parameters, ctas, stream);
  };
  const bool row_major = shape.b_layout == Layout::kRowMajor;
  if (shape.dtype == DataType::kBf16) {
    return row_major ? with.template operator()<DataType::kBf16, Layout::kRowMajor>()
                     : with.template operator()<DataType::kBf16, Layout::kColumnMajor>();
  }
  return row_major ? with.template operator()<DataType::kF16, Layout::kRowMajor>()
                   : with.template operator()<DataType::kF16, Layout::kColumnMajor>();
}

}  // namespace mkernel::kernels

// What the launches of the fused GEMM kernels have in common.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "kernels/memory/cuda_error.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Queues `ctas` CTAs of Config::kThreads threads in clusters of Config::kCluster on `stream`. Cooperative:
/// CTAs wait for each other, so all of them must be resident, or none is started. `name` begins the errors.
template <class Config, class Parameters>
Status launch_cooperative(void (*kernel)(Parameters), const Parameters& parameters, std::int32_t ctas,
                          std::size_t shared_bytes, cudaStream_t stream, const std::string& name) {
  MK_RETURN_IF_ERROR(cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                      static_cast<int>(shared_bytes)),
                                 name + ": shared memory"));
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {Config::kCluster, 1, 1};
  attributes[1].id = cudaLaunchAttributeCooperative;
  attributes[1].val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ctas));
  config.blockDim = dim3(Config::kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cuda_status(cudaLaunchKernelEx(&config, kernel, parameters), name + ": launch");
}

/// Calls `with.operator()<type, layout of b>()` for those of `shape`.
template <class With>
Status with_types(const GemmShape& shape, const With& with) {
  const bool row_major = shape.b_layout == Layout::kRowMajor;
  if (shape.dtype == DataType::kBf16) {
    return row_major ? with.template operator()<DataType::kBf16, Layout::kRowMajor>()
                     : with.template operator()<DataType::kBf16, Layout::kColumnMajor>();
  }
  return row_major ? with.template operator()<DataType::kF16, Layout::kRowMajor>()
                   : with.template operator()<DataType::kF16, Layout::kColumnMajor>();
}

}  // namespace mkernel::kernels

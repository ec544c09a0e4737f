// The launch of a kernel whose CTAs form clusters.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/memory/error.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// Queues `kernel(parameters)` on `stream`: `ctas` CTAs of `threads` threads in clusters of `cluster`, each
/// with `shared_bytes` of dynamic shared memory.
template <class Parameters>
Status launch_clusters(void (*kernel)(Parameters), unsigned ctas, unsigned cluster, unsigned threads,
                       std::size_t shared_bytes, const Parameters& parameters, CUstream_st* stream) {
  MK_RETURN_IF_ERROR(cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                      static_cast<int>(shared_bytes)),
                                 "gemm: shared memory"));
  // All that a multiprocessor has, so that as many CTAs share it as the kernel is made for.
  MK_RETURN_IF_ERROR(cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                                      cudaSharedmemCarveoutMaxShared),
                                 "gemm: shared memory"));
  cudaLaunchAttribute shape{};
  shape.id = cudaLaunchAttributeClusterDimension;
  shape.val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &shape;
  config.numAttrs = 1;
  return cuda_status(cudaLaunchKernelEx(&config, kernel, parameters), "gemm: launch");
}

}  // namespace mkernel::kernels

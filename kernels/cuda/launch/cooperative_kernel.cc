#include "kernels/cuda/launch/cooperative_kernel.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "kernels/cuda/memory/error.h"
#include "kernels/cuda/memory/load_kernel.h"

namespace mkernel::kernels {

Status load_cooperative(const CooperativeKernel& kernel, const std::string& name) {
  MK_RETURN_IF_ERROR(load_kernel(kernel.function, name));
  return cuda_status(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(kernel.shared_bytes)),
                     name + ": shared memory");
}

Status rehearse(const CooperativeKernel& kernel, CUstream_st* stream, const std::string& name) {
  const std::vector<std::byte> zeros(kernel.parameter_bytes);
  return launch_cooperative(kernel, zeros.data(), kernel.cluster, stream, name + ": rehearsal");
}

Status launch_cooperative(const CooperativeKernel& kernel, const void* parameters, std::int32_t ctas,
                          CUstream_st* stream, const std::string& name) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(kernel.cluster), 1, 1};
  attributes[1].id = cudaLaunchAttributeCooperative;
  attributes[1].val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ctas));
  config.blockDim = dim3(static_cast<unsigned>(kernel.threads));
  config.dynamicSmemBytes = kernel.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  void* arguments[] = {const_cast<void*>(parameters)};  // the runtime reads it only
  return cuda_status(cudaLaunchKernelExC(&config, kernel.function, arguments), name + ": launch");
}

}  // namespace mkernel::kernels

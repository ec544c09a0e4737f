// Functions of the CUDA driver, found through the runtime, so that nothing links libcuda: programs start on
// machines without a driver.
#pragma once

#include <cuda_runtime_api.h>

namespace mkernel::kernels {

/// The driver's function `name` as of driver API version `since` (12040: CUDA 12.4); null when the driver is
/// older, or there is none.
template <typename Function>
Function driver_entry(const char* name, unsigned since) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion(name, &function, since, cudaEnableDefault, &found) != cudaSuccess)
    return nullptr;
  return found == cudaDriverEntryPointSuccess ? reinterpret_cast<Function>(function) : nullptr;
}

}  // namespace mkernel::kernels

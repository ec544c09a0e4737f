#include "client/src/cuda_driver.cuh"

#include <cuda_runtime_api.h>

#include "kernels/cuda/memory/hopper.h"

namespace mkernel::client {
namespace {

constexpr unsigned kApiVersion = 12000;  ///< of the functions' signatures: those of every CUDA 12 and 13

Status find(const char* name, void** function) {
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, function, kApiVersion, cudaEnableDefault, &found);
  if (error == cudaSuccess && found == cudaDriverEntryPointSuccess && *function != nullptr) return {};
  return {StatusCode::kFailedPrecondition, "the CUDA driver has no " + std::string(name) +
                                               (error == cudaSuccess ? "" : ": ") +
                                               (error == cudaSuccess ? "" : cudaGetErrorString(error))};
}

Result<CudaDriver> load() {
  const Status fits = kernels::check_driver();
  if (!fits.ok()) return Status(StatusCode::kFailedPrecondition, fits.text());
  CudaDriver driver;
#define MK_FIND(name) MK_RETURN_IF_ERROR(find(#name, reinterpret_cast<void**>(&driver.name)));
  MK_CUDA_FUNCTIONS(MK_FIND)
#undef MK_FIND
  MK_RETURN_IF_ERROR(driver.status(driver.cuInit(0), "cuInit"));
  return driver;
}

}  // namespace

Status CudaDriver::status(CUresult error, const std::string& what) const {
  if (error == CUDA_SUCCESS) return {};
  StatusCode code = StatusCode::kInternal;
  switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY: code = StatusCode::kResourceExhausted; break;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_SYSTEM_NOT_READY: code = StatusCode::kFailedPrecondition; break;
    default: break;
  }
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(error, &name) != CUDA_SUCCESS) name = "unknown CUresult";
  if (cuGetErrorString(error, &text) != CUDA_SUCCESS) text = "no description";
  return {code, what + ": " + name + " (" + std::to_string(static_cast<int>(error)) + "): " + text};
}

Result<const CudaDriver*> cuda_driver() {
  static const Result<CudaDriver> driver = load();
  if (!driver.ok()) return driver.status();
  return &driver.value();
}

}  // namespace mkernel::client

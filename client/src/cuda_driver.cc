#include "client/src/cuda_driver.cuh"

#include <cuda_runtime_api.h>

namespace mkernel::client {
namespace {

constexpr unsigned kApiVersion = 12000;  ///< of the functions' signatures: those of every CUDA 12 and 13

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// The runtime loads libcuda when it is first asked for something.
Status check_driver() {
  int driver = 0;
  const cudaError_t asked = cudaDriverGetVersion(&driver);
  if (asked != cudaSuccess || driver == 0) {
    return {StatusCode::kFailedPrecondition, "no CUDA driver on this machine (libcuda.so.1 not found)"};
  }
  if (driver >= static_cast<int>(kApiVersion)) return {};
  return {StatusCode::kFailedPrecondition, "the CUDA driver supports CUDA " + version_text(driver) + ", " +
                                               version_text(kApiVersion) + " is needed"};
}

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
  MK_RETURN_IF_ERROR(check_driver());
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

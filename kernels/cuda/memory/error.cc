#include "kernels/cuda/memory/error.h"

#include <cuda_runtime_api.h>

#include <string>

namespace mkernel::kernels {
namespace {

StatusCode code_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return StatusCode::kResourceExhausted;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorDevicesUnavailable: return StatusCode::kUnavailable;
    default: return StatusCode::kInternal;
  }
}

}  // namespace

Status cuda_status(int error, std::string_view what) {
  const auto code = static_cast<cudaError_t>(error);
  if (code == cudaSuccess) return {};
  return {code_of(code),
          std::string(what) + ": " + cudaGetErrorName(code) + " (" + cudaGetErrorString(code) + ")"};
}

}  // namespace mkernel::kernels

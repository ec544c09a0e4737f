#include "kernels/cuda/memory/load_kernel.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/memory/driver_entry.h"
#include "kernels/cuda/memory/error.h"

namespace mkernel::kernels {
namespace {

// First driver API version that has cuFuncLoad() and cuFuncIsLoaded().
constexpr unsigned kSince = 12040;

}  // namespace

Status load_kernel(const void* function, const std::string& name) {
  cudaFuncAttributes attributes{};
  // Loads by itself in drivers that do not have cuFuncLoad().
  MK_RETURN_IF_ERROR(cuda_status(cudaFuncGetAttributes(&attributes, function), name + ": kernel"));
  const auto load = driver_entry<decltype(&cuFuncLoad)>("cuFuncLoad", kSince);
  const auto is_loaded = driver_entry<decltype(&cuFuncIsLoaded)>("cuFuncIsLoaded", kSince);
  if (load == nullptr || is_loaded == nullptr) return {};
  cudaFunction_t handle = nullptr;
  MK_RETURN_IF_ERROR(cuda_status(cudaGetFuncBySymbol(&handle, function), name + ": kernel"));
  // The driver's errors of these calls have the numbers of the runtime's.
  MK_RETURN_IF_ERROR(cuda_status(load(handle), name + ": loading its kernel"));
  CUfunctionLoadingState state{};
  MK_RETURN_IF_ERROR(cuda_status(is_loaded(&state, handle), name + ": loading its kernel"));
  if (state == CU_FUNCTION_LOADING_STATE_LOADED) return {};
  return {StatusCode::kInternal, name + ": the driver has not loaded its kernel"};
}

}  // namespace mkernel::kernels

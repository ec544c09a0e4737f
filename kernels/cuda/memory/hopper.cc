#include "kernels/cuda/memory/hopper.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/memory/error.h"

namespace mkernel::kernels {

Result<std::int32_t> hopper_multiprocessors(std::string_view who, std::int32_t at_most) {
  const std::string name(who);
  int device = 0;
  MK_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), name + ": current device"));
  const auto read = [&](cudaDeviceAttr what, int& value) {
    return cuda_status(cudaDeviceGetAttribute(&value, what, device), name + ": device attribute");
  };
  int major = 0, minor = 0, sms = 0;
  MK_RETURN_IF_ERROR(read(cudaDevAttrComputeCapabilityMajor, major));
  MK_RETURN_IF_ERROR(read(cudaDevAttrComputeCapabilityMinor, minor));
  MK_RETURN_IF_ERROR(read(cudaDevAttrMultiProcessorCount, sms));
  if (major == 9 && minor == 0) return at_most != 0 ? std::min(sms, at_most) : sms;
  return Status(StatusCode::kUnimplemented, name + ": device " + std::to_string(device) +
                                                " has compute capability " + std::to_string(major) + "." +
                                                std::to_string(minor) + ", the kernels need 9.0");
}

}  // namespace mkernel::kernels

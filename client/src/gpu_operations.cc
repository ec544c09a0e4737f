// What kernels need of this process: pinned segments, and endpoints made on the session's device.
#include <string>
#include <utility>

#include "client/src/gpu_memory.h"
#include "kernels/cuda/memory/error.h"
#include "kernels/cuda/memory/on_device.h"

namespace mkernel::client {
Result<std::shared_ptr<const void>> pin_for_gpu(int device, void* data, std::uint64_t bytes) {
  const kernels::OnDevice here(device);
  MK_RETURN_IF_ERROR(here.status());
  MK_RETURN_IF_ERROR(kernels::cuda_status(
      cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
      "pinning " + std::to_string(bytes) + " bytes of host memory for GPU " + std::to_string(device)));
  return std::shared_ptr<const void>(data, [](void* pinned) { (void)cudaHostUnregister(pinned); });
}

Result<std::shared_ptr<kernels::RingsOnDevice>> make_rings_on_gpu(int device, abi::SessionSegment& segment) {
  const kernels::OnDevice here(device);
  MK_RETURN_IF_ERROR(here.status());
  return kernels::RingsOnDevice::make(segment);
}

Result<std::shared_ptr<kernels::EndpointOnDevice>> make_endpoint_on_gpu(
    int device, const kernels::GroupView& group, std::shared_ptr<kernels::RingsOnDevice> rings,
    const kernels::SymmetricView& workspace, const kernels::EndpointOnDeviceOptions& options) {
  const kernels::OnDevice here(device);
  MK_RETURN_IF_ERROR(here.status());
  auto made = kernels::EndpointOnDevice::make(group, std::move(rings), workspace, options);
  if (!made.ok()) return made.status();
  return std::shared_ptr<kernels::EndpointOnDevice>(std::move(*made));
}

Result<device::Peers> peers_on_gpu(kernels::EndpointOnDevice& endpoint,
                                   const kernels::SymmetricView& buffer) {
  return endpoint.peers(buffer);
}

Status status_of_launches(const kernels::EndpointOnDevice& endpoint) {
  return endpoint.status();
}

}  // namespace mkernel::client

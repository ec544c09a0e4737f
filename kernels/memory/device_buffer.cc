#include "kernels/memory/device_buffer.h"

#include <cuda_runtime_api.h>

#include "kernels/memory/cuda_error.h"

namespace mkernel::kernels {

Result<DeviceBuffer> DeviceBuffer::zeroed(std::uint64_t bytes, const char* what) {
  DeviceBuffer buffer;
  MK_RETURN_IF_ERROR(cuda_status(cudaMalloc(&buffer.address_, bytes), what));
  buffer.bytes_ = bytes;
  MK_RETURN_IF_ERROR(cuda_status(cudaMemset(buffer.address_, 0, bytes), what));
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (address_ != nullptr)
    cudaFree(address_);  // an error here is one of an earlier launch: told by its own status
}

Status DeviceBuffer::write(const void* from, std::uint64_t bytes) {
  return cuda_status(cudaMemcpy(address_, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
}

Status DeviceBuffer::read(void* to, std::uint64_t bytes) const {
  return cuda_status(cudaMemcpy(to, address_, bytes, cudaMemcpyDeviceToHost), "copy from the device");
}

}  // namespace mkernel::kernels

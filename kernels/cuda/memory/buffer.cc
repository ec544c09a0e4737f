#include "kernels/cuda/memory/buffer.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/memory/error.h"
#include "kernels/cuda/memory/own_stream.h"

namespace mkernel::kernels {

Result<DeviceBuffer> DeviceBuffer::allocate(std::uint64_t bytes, const char* what) {
  DeviceBuffer buffer;
  MK_RETURN_IF_ERROR(cuda_status(cudaMalloc(&buffer.address_, bytes), what));
  buffer.bytes_ = bytes;
  return Result<DeviceBuffer>(std::move(buffer));
}

Result<DeviceBuffer> DeviceBuffer::zeroed(std::uint64_t bytes, const char* what) {
  auto buffer = allocate(bytes, what);
  if (!buffer.ok()) return buffer;
  const auto stream = OwnStream::make(what);
  if (!stream.ok()) return stream.status();
  MK_RETURN_IF_ERROR(stream->zero(buffer->get(), bytes, what));
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (address_ != nullptr)
    cudaFree(address_);  // an error here is one of an earlier launch: told by its own status
}

Status DeviceBuffer::write(const void* from, std::uint64_t bytes) {
  const auto stream = OwnStream::make("copy to the device");
  if (!stream.ok()) return stream.status();
  return stream->to_device(address_, from, bytes, "copy to the device");
}

Status DeviceBuffer::read(void* to, std::uint64_t bytes) const {
  const auto stream = OwnStream::make("copy from the device");
  if (!stream.ok()) return stream.status();
  return stream->to_host(to, address_, bytes, "copy from the device");
}

}  // namespace mkernel::kernels

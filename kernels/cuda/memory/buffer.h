// Memory of a GPU that ends with its owner. Plain C++: no CUDA header needed.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "proto/abi/status.h"

namespace mkernel::kernels {

/// cudaMalloc'ed on the device that was current. Movable; freed in the destructor, which waits for the
/// device.
class DeviceBuffer {
 public:
  /// Zeroed by the time it returns, whatever other streams are doing (nothing is queued on the default
  /// stream, which would wait for them). `what` is what errors call it. kResourceExhausted when there is not
  /// so much.
  static Result<DeviceBuffer> zeroed(std::uint64_t bytes, const char* what);

  /// The same with whatever the memory held before; nothing is queued.
  static Result<DeviceBuffer> allocate(std::uint64_t bytes, const char* what);

  /// A copy of a table of the host's; the same otherwise.
  template <typename T>
  static Result<DeviceBuffer> holding(const std::vector<T>& table, const char* what) {
    auto buffer = allocate(table.size() * sizeof(T), what);
    if (buffer.ok()) MK_RETURN_IF_ERROR(buffer->write(table.data(), table.size() * sizeof(T)));
    return buffer;
  }

  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer();

  void* get() const { return address_; }
  std::uint64_t bytes() const { return bytes_; }

  /// Both block until the copy is done, and wait for nothing else; [0, bytes) of the buffer.
  Status write(const void* from, std::uint64_t bytes);
  Status read(void* to, std::uint64_t bytes) const;

 private:
  void* address_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace mkernel::kernels

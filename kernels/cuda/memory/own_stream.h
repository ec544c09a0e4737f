// A stream that belongs to one object, for what must not wait for the caller's work. Plain C++: no CUDA
// header needed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "proto/abi/status.h"

struct CUstream_st;

namespace mkernel::kernels {

/// A non-blocking stream of the device that was current: it waits for no other stream, and none waits for it
/// (the legacy default stream waits for all others of its kind, i.e. for kernels that wait for other ranks).
/// The calls below block until they are done; `what` begins their errors. One thread at a time.
class OwnStream {
 public:
  static Result<OwnStream> make(const std::string& what);

  CUstream_st* get() const { return stream_.get(); }
  /// Until everything that was queued here is done.
  Status wait(const std::string& what) const;

  Status zero(void* device, std::uint64_t bytes, const std::string& what) const {
    return fill(device, 0, bytes, what);
  }
  Status fill(void* device, std::uint8_t byte, std::uint64_t bytes, const std::string& what) const;
  Status to_device(void* device, const void* host, std::uint64_t bytes, const std::string& what) const;
  Status to_host(void* host, const void* device, std::uint64_t bytes, const std::string& what) const;
  /// `rows` times `width` bytes that lie `pitch` bytes apart; on the host they lie together.
  Status rows_to_host(void* host, const void* device, std::uint64_t width, std::uint64_t pitch,
                      std::uint64_t rows, const std::string& what) const;

 private:
  struct Destroy {
    void operator()(CUstream_st* stream) const;
  };
  std::unique_ptr<CUstream_st, Destroy> stream_;
};

/// Pinned host memory, zeroed: a copy to or from it needs the copy engine alone.
struct FreePinned {
  void operator()(void* memory) const;
};
Result<std::unique_ptr<void, FreePinned>> pinned_memory(std::uint64_t bytes, const std::string& what);

}  // namespace mkernel::kernels

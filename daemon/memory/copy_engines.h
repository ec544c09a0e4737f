// The seam to the copy engines of the GPUs: memory that they reach, and copies that they carry out while the
// caller does something else. Implemented by the GPU module (gpu_module.h) and by fakes in tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "proto/abi/region_map.h"
#include "proto/abi/status.h"

namespace mkernel::memory {

/// Memory as the copy engines reach it. The last reference gives it back: unmapped and released (GPU memory),
/// unpinned (host memory).
class EngineMemory {
 public:
  virtual ~EngineMemory() = default;
  EngineMemory(const EngineMemory&) = delete;
  EngineMemory& operator=(const EngineMemory&) = delete;

 protected:
  EngineMemory() = default;
};

/// A copy that was started; the default is one that is over.
struct CopyTicket {
  std::uint32_t queue = 0;
  std::uint64_t number = 0;  ///< 1 for the queue's first copy
};

/// How this process has host memory mapped.
enum class Access : std::uint8_t { kReadWrite, kRead };

/// One thread, and one thread alone.
class CopyEngines {
 public:
  virtual ~CopyEngines() = default;

  /// Makes all `bytes` of the VMM allocation behind `fd` reachable; the fd stays the caller's. Takes about
  /// 0.1 ms, the first time on a GPU some hundred. Errors name what the driver said, which has codes of its
  /// own for an fd that is no VMM allocation, one smaller than `bytes`, and a GPU that this process cannot
  /// use.
  virtual Result<std::shared_ptr<EngineMemory>> map(int fd, std::uint64_t bytes) = 0;
  /// Opens [offset, offset + bytes) of plain GPU memory, of a process that may be gone by now: while it is
  /// open here the driver keeps it. Errors as those of map(): garbage, a GPU that this process does not see,
  /// bytes outside the allocation.
  virtual Result<std::shared_ptr<EngineMemory>> open(const abi::IpcMemory& memory, std::uint64_t offset,
                                                     std::uint64_t bytes) = 0;
  /// Makes host memory reachable. The caller keeps it mapped as long as anybody holds the result. Pages are
  /// pinned at the first copy, at about 4 GB/s. With Access::kRead it is only a source.
  virtual Result<std::shared_ptr<EngineMemory>> pin(std::byte* data, std::uint64_t bytes,
                                                    Access access = Access::kReadWrite) = 0;

  /// Takes a copy of [source_offset, + bytes) to target_offset; at least one of the two is GPU memory, and
  /// the caller has checked both ranges. Begins with the next poll(), or later, together with others. Both
  /// are kept alive until the copy is over. Errors: kFailedPrecondition for GPUs that do not reach each
  /// other, kResourceExhausted (pinning), what the engines failed with.
  virtual Result<CopyTicket> start(const std::shared_ptr<EngineMemory>& source, std::uint64_t source_offset,
                                   const std::shared_ptr<EngineMemory>& target, std::uint64_t target_offset,
                                   std::uint64_t bytes) = 0;
  /// Hands copies to the engines, looks which are over; never blocks. Copies end in any order. An error is
  /// for good: copies that were under way never end, nothing can be started.
  virtual Status poll() = 0;
  /// As of the last poll(): the copy is over and its bytes are visible to whoever is told so from now on.
  virtual bool done(const CopyTicket& ticket) const = 0;
};

}  // namespace mkernel::memory

// From a client's fd to a Region: every check that stands between an untrusted fd and the daemon's own loads
// and stores.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/memory/region.h"
#include "proto/abi/status.h"
#include "proto/ipc/fd.h"

namespace mkernel::memory {

/// What a client asks to register; every field is untrusted.
struct RegionRequest {
  std::uint32_t kind = 0;  ///< abi::RegionKind
  bool shared = false;
  ipc::UniqueFd fd;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// Checks and maps the region. Errors name the value and the limit: kInvalidArgument for an unknown kind, an
/// fd that is no memfd sealed against shrinking, or one that may not be written; kOutOfRange when it lies
/// outside its fd; kResourceExhausted above `max_bytes` or when the address space is full; kUnimplemented for
/// GPU memory and huge pages. Any thread.
Result<std::shared_ptr<const Region>> open_region(RegionRequest request, std::uint64_t id,
                                                  std::uint64_t max_bytes);

/// "host", "dma-buf", "vmm", "none".
const char* kind_name(abi::RegionKind kind);

}  // namespace mkernel::memory

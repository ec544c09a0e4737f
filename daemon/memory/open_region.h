// From a client's fd to a Region: every check that stands between an untrusted fd and the daemon's own loads
// and stores.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

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
  std::int32_t device = -1;  ///< GPU that its session named in hello
  abi::IpcMemory cuda_ipc{};
  ipc::UniqueFd dma_buf;
  std::uint64_t dma_buf_offset = 0;
  std::string no_dma_buf;
};

/// Major number of the character devices of NVIDIA's driver; the fd of a VMM allocation is an open file of
/// one.
inline constexpr unsigned kNvidiaMajor = 195;

/// Type of the file system that dma-bufs are files of (DMA_BUF_MAGIC of newer linux/magic.h).
inline constexpr long kDmaBufType = 0x444d4142;

/// What is allowed here.
struct RegionRules {
  std::uint64_t max_bytes = 0;
  // Tests let other files stand in for the GPU's.
  unsigned gpu_major = kNvidiaMajor;
  long dma_buf_type = kDmaBufType;
  std::uint64_t max_host_bytes = 0;  ///< host memory may be limited further; 0: as max_bytes
};

/// Checks the region; maps it when it is host memory. Errors name the value and the limit: kInvalidArgument
/// for an unknown kind, an fd that is no memfd sealed against shrinking (host), not of the GPU's driver (vmm)
/// or no dma-buf (GPU memory), or one that may not be written; kOutOfRange when it lies outside its fd;
/// kResourceExhausted above `max_bytes` or when the address space is full; kFailedPrecondition for GPU memory
/// of a session without GPU, and for host memory with holes: pages that are not there yet would be made by
/// the daemon's stores and charged to its memory cgroup, not to the client's. kUnimplemented for huge pages.
/// How large the allocation behind a vmm fd or an IPC handle really is only a driver can tell: whoever maps
/// it finds out. Takes time with the size of host memory: not for a thread that others wait for. Any thread.
Result<std::unique_ptr<Region>> open_region(RegionRequest request, std::uint64_t id,
                                            const RegionRules& rules);

/// "host", "ipc", "vmm", "none".
const char* kind_name(abi::RegionKind kind);

}  // namespace mkernel::memory

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

/// What a client asks to register: untrusted but for two fields.
struct RegionRequest {
  std::uint32_t kind = 0;  ///< abi::RegionKind
  // The daemon's own word: user and session.
  std::uint64_t owner = 0;
  std::uint64_t session = 0;
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

/// Checks the region; maps it when it is host memory, and seals it as seal_region() does unless it is shared.
/// `holds`: those of this daemon. Errors name the value and the limit: kInvalidArgument
/// for an unknown kind, an fd that is no memfd sealed against shrinking (host), not of the GPU's driver (vmm)
/// or no dma-buf (GPU memory), or one that may not be written; kOutOfRange when it lies outside its fd;
/// kResourceExhausted above `max_bytes` or when the address space is full; kFailedPrecondition for GPU memory
/// of a session without GPU, for a memfd that another user or daemon has sealed, and what seal_region()
/// refuses. kUnimplemented for huge pages.
/// How large the allocation behind a vmm fd or an IPC handle really is only a driver can tell: whoever maps
/// it finds out. Takes as long as the client likes: only for a thread on which this user alone waits. On an
/// error the fds stay in `request`, but for a memfd: closing the others may take as long as their sender
/// likes.
Result<std::unique_ptr<Region>> open_region(RegionRequest&& request, std::uint64_t id,
                                            const RegionRules& rules, ipc::WriteHolds& holds);

/// Seals the memfd of a region of host memory (F_SEAL_FUTURE_WRITE), so that nobody can punch a hole into it
/// any more, then looks for holes. From then on no load and no store of the daemon creates a page or waits
/// for one that is being taken away. Nobody can map the memfd for writing afterwards, except by a mapping
/// that is there already. Kernels before Linux 5.1 lack the seal: there only the holes of this moment are
/// found. Errors: kFailedPrecondition for a memfd that takes no more seals (F_SEAL_SEAL) and for holes: pages
/// that are not there yet would be made by the daemon's stores and charged to its memory cgroup, not to the
/// client's. Waits for the inode's lock, which the client can hold: threads as for open_region().
Status seal_region(const Region& region);

/// "host", "ipc", "vmm", "none".
const char* kind_name(abi::RegionKind kind);

}  // namespace mkernel::memory

// The kinds of memory that buffers are made of: how a rank makes its own part and how it maps a neighbour's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "proto/abi/region_map.h"
#include "proto/abi/status.h"
#include "proto/ipc/fd.h"
#include "proto/ipc/write_hold.h"

namespace mkernel::client {

/// Memory mapped here for as long as `hold` lives.
struct MappedMemory {
  std::byte* data = nullptr;  ///< of a GPU: an address of that device
  std::shared_ptr<const void> hold;
};

/// What other processes reach a piece of memory by.
struct SharedMemory {
  ipc::UniqueFd fd;           ///< memfd or VMM allocation; none of plain GPU memory
  std::uint64_t offset = 0;   ///< of the piece within the fd; plain GPU memory: within its allocation
  abi::IpcMemory cuda_ipc{};  ///< plain GPU memory alone
  // GPU memory: what a NIC registers.
  ipc::UniqueFd dma_buf;             ///< or none
  std::uint64_t dma_buf_offset = 0;  ///< of the piece within the dma-buf
  std::string no_dma_buf;            ///< why the driver gave none
};

struct NewMemory {
  MappedMemory mapped;
  SharedMemory shared;  ///< for the daemon; needed until the region is registered
};

/// Any thread. What was mapped may outlive its source.
class MemorySource {
 public:
  virtual ~MemorySource() = default;

  virtual abi::RegionKind kind() const = 0;
  /// Bytes that hold `bytes` in whole units of this memory: what is made and registered.
  virtual std::uint64_t whole(std::uint64_t bytes) const = 0;
  /// Zeroed memory of whole(`bytes`), or the caller's own as it is. `label` shows where this kind of memory
  /// can carry one.
  virtual Result<NewMemory> make(const std::string& label, std::uint64_t bytes) = 0;
  /// Another rank's memory, as its region was registered.
  virtual Result<MappedMemory> map(const SharedMemory& theirs, std::uint64_t bytes) = 0;
};

/// memfds.
MemorySource& host_memory();

/// [offset, offset + bytes) of a memfd that this rank registers, mapped, with all its pages there: what the
/// daemon had to make would be charged to the daemon, which therefore refuses regions with holes.
Result<MappedMemory> map_own(int memfd, std::uint64_t offset, std::uint64_t bytes);
/// The same of a memfd that may be registered already, and then gives no new mapping by itself.
Result<MappedMemory> map_own(const ipc::WriteHold& memfd, std::uint64_t offset, std::uint64_t bytes);

/// The holds of this process: what keeps memfds mappable that a daemon has sealed.
ipc::WriteHolds& write_holds();

/// [offset, offset + bytes) of another rank's memfd, mapped.
Result<MappedMemory> map_host(int memfd, std::uint64_t offset, std::uint64_t bytes);

}  // namespace mkernel::client

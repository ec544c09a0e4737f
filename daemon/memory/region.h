// A piece of a client's memory as the daemon holds it: the fd keeps it alive, the mapping (host memory only)
// is where the CPU transports read and write. Immutable after creation; shared by control path and proxies
// through shared_ptr.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "proto/abi/region_map.h"
#include "proto/ipc/fd.h"
#include "proto/ipc/write_hold.h"

namespace mkernel::memory {

struct Region : std::enable_shared_from_this<Region> {
  /// What the region counts for, given back last: when its memory is free.
  std::shared_ptr<const void> charge;
  std::uint64_t id = 0;       ///< unique in this daemon's life
  std::uint64_t session = 0;  ///< whose it is (Touching)
  abi::RegionKind kind = abi::RegionKind::kNone;
  bool shared = false;       ///< ranks of the group on this node may map it
  ipc::UniqueFd fd;          ///< none of plain GPU memory
  std::uint64_t offset = 0;  ///< of the region within the fd; plain GPU memory: within its allocation
  std::uint64_t bytes = 0;
  /// Host memory: what more regions of the same memfd are mapped by.
  std::shared_ptr<const ipc::WriteHold> hold;
  ipc::Mapping mapping;       ///< host memory: the region itself, begins at `offset`; empty for GPU memory
  std::int32_t device = -1;   ///< GPU memory: the GPU as its client counts them
  abi::IpcMemory cuda_ipc{};  ///< plain GPU memory: how the allocation is opened
  // GPU memory: what a NIC registers.
  ipc::UniqueFd dma_buf;             ///< or none
  std::uint64_t dma_buf_offset = 0;  ///< of the region within the dma-buf
  std::string no_dma_buf;            ///< why there is none: one printable line

  /// Nothing may be read or written there before seal_region().
  bool needs_seal() const { return shared && !on_gpu(); }
  bool on_gpu() const { return kind != abi::RegionKind::kHostMemory; }
  /// Address of `at` bytes into a host-memory region.
  std::byte* host(std::uint64_t at) const { return mapping.data() + at; }
};

/// True when [offset, offset + length) lies within `bytes`, without overflow for any input.
constexpr bool in_bounds(std::uint64_t offset, std::uint64_t length, std::uint64_t bytes) {
  return offset <= bytes && length <= bytes - offset;
}

}  // namespace mkernel::memory

// The seam between the emulated fabric and the kind of memory it moves: how a peer's memory is reached, and
// how bytes get from there into a target.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/transport/transport.h"
#include "proto/ipc/fd.h"

namespace mkernel::transport::emulated {

/// A region of another process that puts read from, kept reachable for as long as the object lives.
struct ImportedRegion {
  ipc::Mapping mapping;  ///< begins at the region's offset in its fd
  std::uint64_t bytes() const { return mapping.bytes(); }
};

class Copier {
 public:
  virtual ~Copier() = default;
  /// Whether puts may read from and write to this kind of memory.
  virtual bool supports(abi::RegionKind kind) const = 0;
  /// Makes [offset, +bytes) of `fd` readable; the fd came over a wire and is checked first.
  virtual Result<ImportedRegion> import(int fd, std::uint64_t offset, std::uint64_t bytes) = 0;
  /// Copies `length` bytes from `source_offset` into `target`; both ranges were checked. Done when it
  /// returns.
  virtual void copy(const ImportedRegion& source, std::uint64_t source_offset, const Target& target,
                    std::uint64_t length) = 0;
};

/// memfd to memfd.
class HostCopier final : public Copier {
 public:
  bool supports(abi::RegionKind kind) const override { return kind == abi::RegionKind::kHostMemory; }
  Result<ImportedRegion> import(int fd, std::uint64_t offset, std::uint64_t bytes) override;
  void copy(const ImportedRegion& source, std::uint64_t source_offset, const Target& target,
            std::uint64_t length) override;
};

}  // namespace mkernel::transport::emulated

// How bytes get from a peer's region into a target: the CPU copies host memory, the copy engines of the GPUs
// everything that lies on one. Two kinds of doing the same thing behind one call, which is over at once or
// later.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/base/owner_workers.h"
#include "daemon/memory/copy_engines.h"
#include "daemon/memory/engine_regions.h"
#include "daemon/transport/transport.h"
#include "proto/ipc/fd.h"

namespace mkernel::transport::emulated {

/// A region of another process that puts read from, kept reachable for as long as the object lives.
struct ImportedRegion {
  abi::RegionKind kind = abi::RegionKind::kHostMemory;
  std::uint64_t bytes = 0;
  ipc::Mapping mapping;  ///< host memory, read only: begins at the region's offset in its fd
  /// For the copy engines: GPU memory, and host memory once a put to a GPU reads from it.
  std::shared_ptr<memory::EngineMemory> engine;
  Status unusable;  ///< why puts from it are refused; only GPU memory can be announced and still be unusable
};

/// One thread.
class Copier {
 public:
  /// Without `engines` it copies host memory only.
  explicit Copier(std::shared_ptr<memory::CopyEngines> engines = nullptr) : engines_(std::move(engines)) {}

  bool moves_gpu_memory() const { return engines_ != nullptr; }
  /// Whether puts may read from and write to this kind of memory.
  bool supports(abi::RegionKind kind) const;

  /// A region as its peer announced it.
  struct Announced {
    abi::RegionKind kind = abi::RegionKind::kNone;
    int fd = -1;  ///< of the region; plain GPU memory has none
    std::uint64_t offset = 0, bytes = 0;
    abi::IpcMemory cuda_ipc{};
  };
  /// Makes it readable; everything came over a wire and is checked first. What is wrong with host memory the
  /// peer's daemon should have seen, and is an error here. What is wrong with GPU memory only a driver sees:
  /// that region is imported, unusable. Whoever drops it last does not wait until its host memory is
  /// unmapped.
  Result<std::shared_ptr<ImportedRegion>> import(const Announced& announced);

  struct Started {
    std::uint64_t bytes = 0;    ///< from the start of the range: in place, or taken by an engine
    memory::CopyTicket ticket;  ///< over at once when the CPU copied
    bool over() const { return ticket.number == 0; }
  };
  /// Copies from `source` to `target`, both ranges checked. The CPU copies at most `budget` bytes here and
  /// now, an engine takes all `length` bytes and works on them while the caller goes on.
  Result<Started> start(ImportedRegion& source, std::uint64_t source_offset, const Target& target,
                        std::uint64_t length, std::uint64_t budget);
  /// Looks how far the engines are. An error is for good: what they were copying never ends.
  Status poll() { return engines_ == nullptr ? Status{} : engines_->poll(); }
  bool done(const memory::CopyTicket& ticket) const { return engines_->done(ticket); }

  /// For what takes long, or as long as somebody else likes.
  base::OwnerWorkers& workers() { return *unmapper_; }

  /// The region is going away: gives back what was made of it as a target.
  void forget(const memory::Region& region) { targets_.forget(region); }

 private:
  Result<std::shared_ptr<memory::EngineMemory>> reach(const Announced& announced);
  std::shared_ptr<ImportedRegion> unmapped_elsewhere(ImportedRegion region) const;

  /// Unmapping takes some 10 ms for each 100 MiB.
  std::shared_ptr<base::OwnerWorkers> unmapper_ = std::make_shared<base::OwnerWorkers>("mk-unmap");
  std::shared_ptr<memory::CopyEngines> engines_;
  memory::EngineRegions targets_;
};

}  // namespace mkernel::transport::emulated

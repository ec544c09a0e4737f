// GPU memory as this transport reaches it: copy engines, regions mapped for them, and blocks of pinned host
// memory through which payload goes between a GPU and a socket.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/memory/copy_engines.h"
#include "daemon/memory/engine_regions.h"

namespace mkernel::transport::tcp {

/// Of one direction of one connection: a few times what an engine's answer takes at the speed of a socket.
inline constexpr std::size_t kStagingBytes = std::size_t{2} << 20;
/// One copy: so long that an engine works at full speed, so short that several are under way.
inline constexpr std::size_t kStagingPiece = std::size_t{256} << 10;

/// Pinned at its first copy, and then until the engines are gone.
class StagingBlock {
 public:
  StagingBlock();
  std::byte* data() const { return memory_.get(); }
  std::shared_ptr<memory::EngineMemory> engine;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte[], Free> memory_;
};

/// One thread.
class GpuAccess {
 public:
  ~GpuAccess();

  /// Once, before anything else; null = host memory only.
  void use(std::shared_ptr<memory::CopyEngines> engines) { engines_ = std::move(engines); }
  bool available() const { return engines_ != nullptr; }

  Result<std::shared_ptr<memory::EngineMemory>> reach(const memory::Region& region);
  void forget(const memory::Region& region) { regions_.forget(region); }

  /// A block for one direction of one connection. Whoever gives it back has seen the last copy end; a block
  /// that an engine may still touch is kept by nobody and stays allocated as long as the engines.
  Result<StagingBlock*> lend();
  void give_back(StagingBlock* block) { spare_.push_back(block); }

  Result<memory::CopyTicket> start(const std::shared_ptr<memory::EngineMemory>& source,
                                   std::uint64_t source_offset,
                                   const std::shared_ptr<memory::EngineMemory>& target,
                                   std::uint64_t target_offset, std::uint64_t bytes) {
    return engines_->start(source, source_offset, target, target_offset, bytes);
  }
  /// Hands over copies, looks which are over. An error is for good.
  const Status& poll();
  /// What poll() said last.
  const Status& failure() const { return failure_; }
  bool done(const memory::CopyTicket& ticket) const { return ticket.number == 0 || engines_->done(ticket); }

  /// For the control path: polls until over() says yes. False when the engines fail, or take so long that
  /// they must be taken for failed.
  template <typename Over>
  bool wait(Over over) {
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (!over()) {
      if (!poll().ok() || std::chrono::steady_clock::now() > limit) return false;
    }
    return true;
  }

 private:
  static constexpr std::chrono::seconds kPatience{5};

  std::vector<std::unique_ptr<StagingBlock>> blocks_;
  std::vector<StagingBlock*> spare_;
  memory::EngineRegions regions_;
  std::shared_ptr<memory::CopyEngines> engines_;
  Status failure_;
};

}  // namespace mkernel::transport::tcp

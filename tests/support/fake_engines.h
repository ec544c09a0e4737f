// Copy engines without a GPU: memfds play GPU memory, and copies are carried out piece by piece, late and out
// of step, by the thread that polls.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "daemon/memory/copy_engines.h"

namespace mkernel::test {

class FakeEngines final : public memory::CopyEngines {
 public:
  /// Every copy takes 0 to `slowest` polls, at random. The same seed and calls give the same course.
  FakeEngines(std::uint64_t seed, std::uint32_t slowest) : random_(seed), slowest_(slowest) {}
  /// What would be a write into memory that nobody holds any more.
  ~FakeEngines() override;

  Result<std::shared_ptr<memory::EngineMemory>> map(int fd, std::uint64_t bytes) override;
  /// `memory` as name() made it.
  Result<std::shared_ptr<memory::EngineMemory>> open(const abi::IpcMemory& memory, std::uint64_t offset,
                                                     std::uint64_t bytes) override;
  Result<std::shared_ptr<memory::EngineMemory>> pin(std::byte* data, std::uint64_t bytes,
                                                    memory::Access access) override;
  Result<memory::CopyTicket> start(const std::shared_ptr<memory::EngineMemory>& source,
                                   std::uint64_t source_offset,
                                   const std::shared_ptr<memory::EngineMemory>& target,
                                   std::uint64_t target_offset, std::uint64_t bytes) override;
  Status poll() override;
  bool done(const memory::CopyTicket& ticket) const override;

  /// Names a memfd of this process as CUDA IPC names an allocation. It must stay open.
  static abi::IpcMemory name(int fd);

  /// Copies that are started from now on wait for release(), or only a number of polls.
  void hold(std::uint64_t polls = ~std::uint64_t{0}) { held_polls_ = polls; }
  void release();
  /// From the next poll on everything fails with this.
  void fail(Status why) { failure_ = std::move(why); }

  std::size_t in_flight() const { return copies_.size(); }
  std::uint64_t started() const { return started_; }
  /// Of map() and open(): objects that live.
  std::size_t mapped() const { return *mapped_; }

 private:
  struct Copy {
    std::uint64_t number;
    std::shared_ptr<memory::EngineMemory> source, target;
    const std::byte* from;
    std::byte* to;
    std::uint64_t left;   ///< bytes
    std::uint64_t polls;  ///< until it is over
  };

  Result<std::shared_ptr<memory::EngineMemory>> reach(int fd, std::uint64_t offset, std::uint64_t bytes);

  std::mt19937_64 random_;
  const std::uint32_t slowest_;
  std::uint64_t held_polls_ = 0;
  std::uint64_t started_ = 0;
  std::vector<Copy> copies_;
  std::shared_ptr<std::size_t> mapped_ = std::make_shared<std::size_t>(0);
  Status failure_;
};

}  // namespace mkernel::test

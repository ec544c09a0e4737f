// Ranks of one node in one process, one thread and one GPU each: symmetric memory is cudaMalloc'ed and
// reached by peer access, the group's segment lies in mapped host memory, nobody serves the rings.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/comm/views.h"
#include "proto/abi/status.h"

namespace mkernel::test {

/// GPUs of compute capability 9.0 that all reach each other's memory, beginning with device 0; prints once
/// why the test is skipped when they are fewer than `wanted`.
bool peers_or_skip(int wanted);
/// How many there are; 0 without a driver.
int peer_count();

class GpuWorld {
 public:
  /// Rank r on device r. Errors: CUDA's.
  static Result<std::unique_ptr<GpuWorld>> make(int ranks);
  ~GpuWorld();
  GpuWorld(const GpuWorld&) = delete;
  GpuWorld& operator=(const GpuWorld&) = delete;

  int size() const { return static_cast<int>(groups_.size()); }
  const kernels::GroupView& group(int rank) const { return groups_[rank]; }
  /// `bytes` of zeroed memory on every rank; stays until the world ends.
  Result<std::vector<kernels::SymmetricView>> symmetric(std::uint64_t bytes);

  /// What a daemon does when a group fails.
  void fail_group(int rank, std::uint32_t code, const std::string& text);

  /// Runs `body` for every rank in a thread of its own with its device current; the first error.
  Status each(const std::function<Status(int rank)>& body) const;

 private:
  GpuWorld() = default;

  std::vector<kernels::GroupView> groups_;
  std::vector<std::pair<int, void*>> device_memory_;
};

}  // namespace mkernel::test

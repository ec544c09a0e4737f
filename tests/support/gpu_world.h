// Ranks in one process, one thread each, on the GPUs of this machine: symmetric memory is cudaMalloc'ed and
// reached by peer access inside a node; between nodes a fake fabric moves it with the copy engines and
// publishes the counts in mapped host memory, where the segments lie.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/views.h"
#include "kernels/cuda/launch/endpoint.h"
#include "kernels/plan/topology.h"
#include "proto/abi/status.h"
#include "tests/support/fake_fabric.h"
#include "tests/support/timed_calls.h"

namespace mkernel::test {

/// GPUs of compute capability 9.0 that all reach each other's memory, beginning with device 0: skip()s when
/// they are fewer than `wanted`.
bool peers_or_skip(int wanted);
/// How many there are; 0 without a driver.
int peer_count();
/// Of a node in tests that want neighbours: a rank for each GPU, two on one GPU where there is no other.
int node_ranks();

/// Rank r has device r, and where there are fewer GPUs than ranks, those share them in turn: then an
/// operation must use sms() multiprocessors, launches of different ranks go to streams that do not wait for
/// each other, and nothing that waits for a whole device (cudaFree) may happen while some rank's launch waits
/// for another's.
class GpuWorld {
 public:
  /// `nodes` of equally many ranks, in node order. Errors: CUDA's.
  static Result<std::unique_ptr<GpuWorld>> make(int ranks, int nodes = 1);
  /// The same with a fabric of `options` (its nodes, ranks_per_node, lanes, how late it delivers).
  static Result<std::unique_ptr<GpuWorld>> make(const FabricOptions& options);
  ~GpuWorld();
  GpuWorld(const GpuWorld&) = delete;
  GpuWorld& operator=(const GpuWorld&) = delete;

  int size() const { return static_cast<int>(rings_.size()); }
  kernels::Topology topology() const { return {options_.nodes, options_.ranks_per_node}; }
  int device_of(int rank) const;
  bool shares_gpus() const { return size() > peer_count(); }
  /// For the options of an operation: 0 (all), or the part of a GPU that a rank may use, even.
  std::int32_t sms() const;
  FakeFabric& fabric() { return *fabric_; }
  const kernels::GroupView& group(int rank) const { return fabric_->group(rank); }
  /// For CudaGemmOperation::use_rings().
  const std::shared_ptr<kernels::RingsOnDevice>& rings(int rank) const { return rings_[rank]; }
  /// `bytes` of zeroed memory on every rank; stays until the world ends. Not while launches wait.
  Result<std::vector<kernels::SymmetricView>> symmetric(std::uint64_t bytes,
                                                        Contents contents = Contents::kData);

  /// What a daemon does when a group fails.
  void fail_group(int rank, std::uint32_t code, const std::string& text);

  /// For calls on behalf of a rank that may wait for another rank's launch. Those of the fabric are in it.
  TimedCalls& calls() const { return calls_; }
  /// Runs `body` for every rank in a thread of its own with its device current. The first error, with those
  /// of the others; where a wait gave up, with what the fabric and calls() did meanwhile.
  Status each(const std::function<Status(int rank)>& body) const;

 private:
  class Memory;
  explicit GpuWorld(const FabricOptions& options) : options_(options) {}
  Status first_error(const std::vector<Status>& results) const;

  const FabricOptions options_;
  mutable TimedCalls calls_;
  std::unique_ptr<FakeFabric> fabric_;
  std::vector<std::shared_ptr<kernels::RingsOnDevice>> rings_;
};

}  // namespace mkernel::test

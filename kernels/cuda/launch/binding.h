// What an operation of the cuda executor holds between its launches, whatever it computes: the group and the
// workspace it is bound to, its end of the channels, its kernel, its timeline, and what became of its
// launches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/views.h"
#include "kernels/cuda/launch/cooperative_kernel.h"
#include "kernels/cuda/launch/endpoint.h"
#include "kernels/cuda/launch/state.h"
#include "kernels/cuda/launch/trace.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/plan/machine.h"
#include "kernels/plan/topology.h"
#include "mkernel/device_endpoint.h"
#include "mkernel/ops.h"

struct CUstream_st;

namespace mkernel::kernels {

/// One rank's end. Addresses are of device memory; the workspace of a SymmetricView is device memory mapped
/// here for every rank of the node. The segments of the group and its session are registered with CUDA by
/// whoever owns them (cudaHostRegister). Over several nodes kernels write the session's rings and wait for
/// counts that their poller copies; whoever launches keeps the daemon awake until the stream is done
/// (Group::keep_active()). Belongs to the device that was current when it was made, and makes it current for
/// the length of each call. Not thread-safe.
class CudaBinding {
 public:
  /// `name` begins the errors.
  CudaBinding(std::string name, Topology topology, std::uint32_t rank);

  /// When the operation is made: loads everything that a launch and its status may run on the device, and
  /// makes what they need besides. A load may wait for whatever runs on the GPU, i.e. for a rank that waits
  /// for this one, so none may be left for a launch. `machine`: what the plan was made for.
  Status load(const CooperativeKernel& kernel, const Machine& machine);
  /// More than one node: the rings that launches write. Before bind().
  void use_rings(std::shared_ptr<RingsOnDevice> rings) { rings_ = std::move(rings); }
  /// `attach` makes what refers to workspace() and lent(), which are there then.
  Status bind(const Requirements& needs, const GroupView& group, const SymmetricView& workspace,
              const SymmetricView& lent, std::uint32_t first_lane, const std::function<Status()>& attach);

  /// kFailedPrecondition before bind(), and after a launch that failed. The first call after a queued launch
  /// has failed returns the reason. Does not wait for a stream of the caller's.
  Status ready();
  /// Queues a launch with this deadline of every wait.
  using Queue = std::function<Status(std::uint64_t deadline_ns, CUstream_st* stream)>;
  /// One launch on `stream`, which `queue` queues.
  Status enqueue(const ExecutorOptions& options, CUstream_st* stream, const Queue& queue);
  /// The same on a stream of its own, then waits for it and tells status().
  Status run(const ExecutorOptions& options, const Queue& queue);
  /// Operation::status().
  Status status();
  /// Those that had ended at the last status().
  std::uint64_t launches() const { return launches_; }
  /// Once the stream of a launch is done: what it has left in device memory. `bytes`: at most
  /// LaunchStateReader::kMostBytes.
  Status read(const void* on_device, void* state, std::uint64_t bytes) const;

  /// What the kernel of a launch puts and waits with, on lanes from 0, and what its poller warp copies. On
  /// one node without rings, lanes and counts: the poller has nothing but abort words to look at. Local
  /// ranks, barrier and peers are not filled in.
  device::Endpoint endpoint(std::uint64_t deadline_ns) const;
  /// Queues the kernel with its parameters.
  Status queue(const void* parameters, std::int32_t ctas, CUstream_st* stream) const;

  const Topology& topology() const { return topology_; }
  std::uint32_t rank() const { return rank_; }
  const SymmetricView& workspace() const { return workspace_; }
  const SymmetricView& lent() const { return lent_; }
  /// "H200 sms=132", for the signature: ranks whose plans differ would wait for each other.
  const std::string& machine() const { return machine_; }

 private:
  Status open_endpoint(const Requirements& needs, const GroupView& group, const SymmetricView& workspace,
                       std::uint32_t first_lane);
  /// Null: not traced.
  Status prepare_trace(Trace* trace, CUstream_st* stream);

  const std::string name_;
  const Topology topology_;
  const std::uint32_t rank_;
  const int device_;
  CooperativeKernel kernel_;
  std::string machine_;
  LaunchStateReader state_;
  const GroupView* group_ = nullptr;
  SymmetricView workspace_, lent_;
  std::shared_ptr<RingsOnDevice> rings_;
  std::unique_ptr<EndpointOnDevice> channels_;  ///< over several nodes
  DeviceBuffer control_;                        ///< on one
  device::Endpoint endpoint_;
  std::optional<LaunchTrace> timeline_;  ///< once a launch was traced
  Trace* traced_ = nullptr;              ///< gets the events of the last launch; null: it was not traced
  std::uint64_t launches_ = 0;
  Status failed_;
};

}  // namespace mkernel::kernels

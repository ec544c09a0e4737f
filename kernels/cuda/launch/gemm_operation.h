// What the GEMM operations of the cuda executor have in common: binding, one stream-ordered launch, and what
// became of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/views.h"
#include "kernels/cuda/endpoint/host_watch.h"
#include "kernels/cuda/launch/cooperative_kernel.h"
#include "kernels/cuda/launch/endpoint.h"
#include "kernels/cuda/launch/rings.h"
#include "kernels/cuda/launch/state.h"
#include "kernels/cuda/launch/trace.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/cuda/sync/launch_control.h"
#include "kernels/plan/machine.h"
#include "kernels/plan/topology.h"
#include "mkernel/device_endpoint.h"
#include "mkernel/ops.h"

struct CUstream_st;

namespace mkernel::kernels {

/// One rank's end. Addresses are of device memory; the workspace of a SymmetricView is device memory mapped
/// here for every rank of the node. The segments of the group and its session are registered with CUDA by
/// whoever owns them (cudaHostRegister). Over several nodes its kernels write the session's rings and wait
/// for counts that their relay copies; whoever launches keeps the daemon awake until the stream is done
/// (Group::keep_active()). The operation belongs to the device that was current when it was
/// made, and makes it current for the length of each call.
class CudaGemmOperation : public GemmOperation {
 public:
  OpKind kind() const final { return kind_; }
  std::string signature() const final;
  /// More than one node: the rings that launches write. Before bind().
  void use_rings(std::shared_ptr<RingsOnDevice> rings) { rings_ = std::move(rings); }
  /// When it is made: loads everything that a launch and its status may run on the device, and makes what
  /// they need besides. A load may wait for whatever runs on the GPU, i.e. for a rank that waits for this
  /// one, so none may be left for a launch. `machine`: what the plan was made for, which the signature says.
  Status load(const CooperativeKernel& kernel, const Machine& machine);
  /// What the plan was made with, for the signature: ranks with other plans would wait for each other.
  void tell_overrides(const GemmPlanOptions& plan) { overrides_ = plan; }
  Status bind(const GroupView& group, const SymmetricView& workspace, std::uint32_t first_lane) final;
  /// The same for every launch; an operation that puts says how many.
  std::uint64_t wire_bytes() const override { return 0; }

  /// enqueue() on a stream of its own, then waits for it and tells status(). What writes the operands must be
  /// over before.
  Status run(const GemmArguments& arguments, const ExecutorOptions& options) final;

  Status enqueue(const GemmArguments& arguments, const ExecutorOptions& options, CUstream_st* stream) final;
  Status status() final;

 protected:
  CudaGemmOperation(OpKind kind, const GemmShape& shape, Topology topology, std::uint32_t rank);

  /// Makes what refers to workspace(), which is there now.
  virtual Status attach() = 0;
  virtual Status launch(const GemmArguments& arguments, std::uint64_t deadline_ns, CUstream_st* stream) = 0;
  /// Queues the kernel with its parameters.
  Status queue(const void* parameters, std::int32_t ctas, CUstream_st* stream) const;

  const GemmShape& shape() const { return shape_; }
  const Topology& topology() const { return topology_; }
  std::uint32_t rank() const { return rank_; }
  const SymmetricView& workspace() const { return workspace_; }
  LaunchControl* control() const { return endpoint_.control; }
  HostWatch host_watch() const { return endpoint_.host; }
  /// What the kernel of a launch puts and waits with, on lanes from 0, and what its relay warp copies. On one
  /// node without rings, lanes and counts: the relay has nothing but abort words to look at. Local ranks,
  /// barrier and peers are not filled in.
  device::Endpoint endpoint(std::uint64_t deadline_ns) const;

 private:
  Status check_room(const GroupView& group, const SymmetricView& workspace, std::uint32_t first_lane) const;
  Status open_endpoint(const GroupView& group, const SymmetricView& workspace, std::uint32_t first_lane);
  /// Null: not traced.
  Status prepare_trace(Trace* trace, CUstream_st* stream);

  const OpKind kind_;
  const GemmShape shape_;
  const Topology topology_;
  const std::uint32_t rank_;
  const int device_;
  CooperativeKernel kernel_;
  std::string machine_;
  LaunchStateReader state_;
  const GroupView* group_ = nullptr;
  SymmetricView workspace_;
  std::shared_ptr<RingsOnDevice> rings_;
  std::unique_ptr<EndpointOnDevice> channels_;  ///< over several nodes
  DeviceBuffer control_;                        ///< on one
  device::Endpoint endpoint_;
  std::optional<LaunchTrace> timeline_;  ///< once a launch was traced
  Trace* traced_ = nullptr;              ///< who is told of the last launch
  Status failed_;
  GemmPlanOptions overrides_;
};

}  // namespace mkernel::kernels

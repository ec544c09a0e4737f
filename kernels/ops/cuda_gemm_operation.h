// What the GEMM operations of the cuda executor have in common: binding, one stream-ordered launch, and what
// became of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/comm/views.h"
#include "kernels/memory/device_buffer.h"
#include "kernels/schedule/topology.h"
#include "kernels/sync/host_watch.h"
#include "kernels/sync/launch_control.h"
#include "mkernel/ops.h"

struct CUstream_st;

namespace mkernel::kernels {

/// One rank's end. Addresses are of device memory; the workspace of a SymmetricView is device memory mapped
/// here for every rank of the node. The segments of the group and its session are registered with CUDA by
/// whoever owns them (cudaHostRegister). The operation belongs to the device that was current when it was
/// made, and makes it current for the length of each call.
class CudaGemmOperation : public GemmOperation {
 public:
  OpKind kind() const final { return kind_; }
  std::string signature() const final;
  Status bind(const GroupView& group, const SymmetricView& workspace, std::uint32_t first_lane) final;
  std::uint64_t wire_bytes() const final { return 0; }  // one node

  /// enqueue() on a stream of its own, then waits for it and tells status().
  Status run(const GemmArguments& arguments, const ExecutorOptions& options) final;

  Status enqueue(const GemmArguments& arguments, const ExecutorOptions& options, CUstream_st* stream) final;
  Status status() final;

 protected:
  CudaGemmOperation(OpKind kind, const GemmShape& shape, Topology topology, std::uint32_t rank);

  /// Makes what refers to workspace(), which is there now.
  virtual Status attach() = 0;
  virtual Status launch(const GemmArguments& arguments, std::uint64_t deadline_ns, CUstream_st* stream) = 0;

  const GemmShape& shape() const { return shape_; }
  const Topology& topology() const { return topology_; }
  std::uint32_t rank() const { return rank_; }
  const SymmetricView& workspace() const { return workspace_; }
  LaunchControl* control() const { return static_cast<LaunchControl*>(control_.get()); }
  HostWatch host_watch() const;

 private:
  const OpKind kind_;
  const GemmShape shape_;
  const Topology topology_;
  const std::uint32_t rank_;
  const int device_;
  const GroupView* group_ = nullptr;
  SymmetricView workspace_;
  DeviceBuffer control_;
  Status failed_;
};

}  // namespace mkernel::kernels

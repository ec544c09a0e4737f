#include "kernels/ops/cuda_gemm_operation.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/memory/cuda_error.h"
#include "kernels/memory/on_device.h"
#include "kernels/ops/gemm_shape.h"
#include "kernels/sync/launch_failure.h"

namespace mkernel::kernels {
namespace {

int current_device() {
  int device = 0;
  (void)cudaGetDevice(&device);  // the plan has asked this device already
  return device;
}

}  // namespace

CudaGemmOperation::CudaGemmOperation(OpKind kind, const GemmShape& shape, Topology topology,
                                     std::uint32_t rank)
    : kind_(kind), shape_(shape), topology_(std::move(topology)), rank_(rank), device_(current_device()) {}

std::string CudaGemmOperation::signature() const {
  return signature_of(kind_, shape_) + " cuda";
}

Status CudaGemmOperation::bind(const GroupView& group, const SymmetricView& workspace, std::uint32_t) {
  if (group_ != nullptr)
    return {StatusCode::kFailedPrecondition, std::string(name_of(kind_)) + ": bound already"};
  const std::uint64_t needed = requirements().workspace_bytes;
  if (workspace.bytes < needed || workspace.node.size() != topology_.ranks_per_node()) {
    return {StatusCode::kInvalidArgument,
            std::string(name_of(kind_)) + ": workspace of " + std::to_string(workspace.bytes) + " bytes on " +
                std::to_string(workspace.node.size()) + " ranks of this node; needs " +
                std::to_string(needed) + " on " + std::to_string(topology_.ranks_per_node())};
  }
  const OnDevice here(device_);
  MK_RETURN_IF_ERROR(here.status());
  auto control = DeviceBuffer::zeroed(sizeof(LaunchControl), "control block");
  if (!control.ok()) return control.status();
  control_ = std::move(control).value();
  workspace_ = workspace;
  MK_RETURN_IF_ERROR(attach());
  group_ = &group;
  return {};
}

HostWatch CudaGemmOperation::host_watch() const {
  return {group_->session == nullptr ? nullptr : &group_->session->abort, &group_->segment->abort};
}

Status CudaGemmOperation::enqueue(const GemmArguments& arguments, const ExecutorOptions& options,
                                  CUstream_st* stream) {
  const std::string name = name_of(kind_);
  if (group_ == nullptr) return {StatusCode::kFailedPrecondition, name + ": not bound"};
  if (!failed_.ok()) {
    return {StatusCode::kFailedPrecondition, name + ": an earlier launch failed: " + failed_.text()};
  }
  MK_RETURN_IF_ERROR(check_operands(kind_, shape_, arguments, rank_, topology_.world()));
  const OnDevice here(device_);
  MK_RETURN_IF_ERROR(here.status());
  if (options.trace != nullptr)
    return {StatusCode::kUnimplemented, signature() + ": the cuda executor does not trace yet"};
  const auto deadline = std::chrono::nanoseconds(options.deadline).count();
  return launch(arguments, static_cast<std::uint64_t>(deadline), stream);
}

Status CudaGemmOperation::run(const GemmArguments& arguments, const ExecutorOptions& options) {
  MK_RETURN_IF_ERROR(enqueue(arguments, options, nullptr));
  const OnDevice here(device_);
  MK_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(nullptr), name_of(kind_)));
  return status();
}

Status CudaGemmOperation::status() {
  if (group_ == nullptr || !failed_.ok()) return failed_;
  const OnDevice here(device_);
  LaunchControl control{};
  failed_ = control_.read(&control, sizeof(control));
  if (failed_.ok()) failed_ = failure_of_launch(control, group_->segment, group_->session, rank_);
  failed_ = failed_.with_context(name_of(kind_));
  return failed_;
}

}  // namespace mkernel::kernels

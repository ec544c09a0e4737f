#include "kernels/cuda/launch/gemm_operation.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/cuda/launch/status.h"
#include "kernels/cuda/memory/error.h"
#include "kernels/cuda/memory/on_device.h"
#include "kernels/plan/gemm_shape.h"

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
  std::string text = signature_of(kind_, shape_) + " cuda " + machine_;
  if (overrides_.comm_ctas != 0) text += " comm_ctas=" + std::to_string(overrides_.comm_ctas);
  if (overrides_.nic_gbytes != 0) text += " nic_gbytes=" + std::to_string(overrides_.nic_gbytes);
  return text;
}

Status CudaGemmOperation::load(const CooperativeKernel& kernel, const Machine& machine) {
  const OnDevice here(device_);
  MK_RETURN_IF_ERROR(here.status());
  MK_RETURN_IF_ERROR(load_cooperative(kernel, name_of(kind_)));
  MK_RETURN_IF_ERROR(LaunchTrace::load());
  auto state = LaunchStateReader::make();
  if (!state.ok()) return state.status();
  state_ = std::move(*state);
  kernel_ = kernel;
  machine_ = std::string(machine.name) + " sms=" + std::to_string(machine.sms);
  return {};
}

Status CudaGemmOperation::bind(const GroupView& group, const SymmetricView& workspace,
                               std::uint32_t first_lane) {
  MK_RETURN_IF_ERROR(check_room(group, workspace, first_lane));
  const OnDevice here(device_);
  MK_RETURN_IF_ERROR(here.status());
  workspace_ = workspace;
  MK_RETURN_IF_ERROR(open_endpoint(group, workspace, first_lane));
  MK_RETURN_IF_ERROR(attach());
  group_ = &group;
  return {};
}

Status CudaGemmOperation::check_room(const GroupView& group, const SymmetricView& workspace,
                                     std::uint32_t first_lane) const {
  const std::string name = name_of(kind_);
  const Requirements needs = requirements();
  if (group_ != nullptr) return {StatusCode::kFailedPrecondition, name + ": bound already"};
  if (workspace.bytes < needs.workspace_bytes || workspace.node.size() != topology_.ranks_per_node()) {
    return {StatusCode::kInvalidArgument,
            name + ": workspace of " + std::to_string(workspace.bytes) + " bytes on " +
                std::to_string(workspace.node.size()) + " ranks of this node; needs " +
                std::to_string(needs.workspace_bytes) + " on " + std::to_string(topology_.ranks_per_node())};
  }
  if (needs.lanes > 0 && rings_ == nullptr)
    return {StatusCode::kFailedPrecondition, name + ": no rings to put through"};
  if (first_lane + needs.lanes > group.segment->lanes) {
    return {StatusCode::kInvalidArgument, name + ": needs " + std::to_string(needs.lanes) +
                                              " lanes from lane " + std::to_string(first_lane) +
                                              " on, the group has " + std::to_string(group.segment->lanes)};
  }
  return {};
}

Status CudaGemmOperation::open_endpoint(const GroupView& group, const SymmetricView& workspace,
                                        std::uint32_t first_lane) {
  if (const std::uint32_t lanes = requirements().lanes; lanes > 0) {
    // No kernel of an operation meets its node at the endpoint's barrier: any memory will do for its words.
    auto made = EndpointOnDevice::make(group, rings_, workspace, {.first_lane = first_lane, .lanes = lanes});
    if (!made.ok()) return made.status();
    channels_ = std::move(made).value();
    endpoint_ = channels_->endpoint();
    return {};
  }
  auto control = DeviceBuffer::zeroed(sizeof(LaunchControl), "control block");
  if (!control.ok()) return control.status();
  control_ = std::move(control).value();
  endpoint_.rank = rank_;
  endpoint_.world_size = topology_.world();
  endpoint_.control = static_cast<LaunchControl*>(control_.get());
  endpoint_.host = {group.session == nullptr ? nullptr : &group.session->abort, &group.segment->abort};
  return {};
}

device::Endpoint CudaGemmOperation::endpoint(std::uint64_t deadline_ns) const {
  device::Endpoint mine = endpoint_;
  mine.deadline_ns = deadline_ns;
  if (traced_ != nullptr) mine.trace = timeline_->on_device();
  return mine;
}

Status CudaGemmOperation::queue(const void* parameters, std::int32_t ctas, CUstream_st* stream) const {
  return launch_cooperative(kernel_, parameters, ctas, stream, name_of(kind_));
}

Status CudaGemmOperation::enqueue(const GemmArguments& arguments, const ExecutorOptions& options,
                                  CUstream_st* stream) {
  const std::string name = name_of(kind_);
  if (group_ == nullptr) return {StatusCode::kFailedPrecondition, name + ": not bound"};
  if (!failed_.ok()) {
    return {StatusCode::kFailedPrecondition, name + ": an earlier launch failed: " + failed_.text()};
  }
  MK_RETURN_IF_ERROR(check_operands(kind_, shape_, arguments, rank_, topology_.world()));
  MK_RETURN_IF_ERROR(check_deadline(options.deadline).with_context(name));
  const OnDevice here(device_);
  MK_RETURN_IF_ERROR(here.status());
  MK_RETURN_IF_ERROR(prepare_trace(options.trace, stream));
  const auto deadline = std::chrono::nanoseconds(options.deadline).count();
  return launch(arguments, static_cast<std::uint64_t>(deadline), stream);
}

Status CudaGemmOperation::prepare_trace(Trace* trace, CUstream_st* stream) {
  traced_ = nullptr;
  if (trace == nullptr) return {};
  cudaStreamCaptureStatus capture{};
  MK_RETURN_IF_ERROR(cuda_status(cudaStreamIsCapturing(stream, &capture), "timeline: stream"));
  if (capture != cudaStreamCaptureStatusNone)
    return {StatusCode::kInvalidArgument, signature() + ": a launch that a graph captures is not traced"};
  if (!timeline_) {
    auto made = LaunchTrace::make();
    if (!made.ok()) return made.status();
    timeline_ = std::move(*made);
  }
  MK_RETURN_IF_ERROR(timeline_->clear(stream));
  traced_ = trace;
  return {};
}

Status CudaGemmOperation::run(const GemmArguments& arguments, const ExecutorOptions& options) {
  MK_RETURN_IF_ERROR(enqueue(arguments, options, state_.stream().get()));
  const OnDevice here(device_);
  MK_RETURN_IF_ERROR(state_.stream().wait(name_of(kind_)));
  return status();
}

Status CudaGemmOperation::status() {
  if (group_ == nullptr || !failed_.ok()) return failed_;
  const OnDevice here(device_);
  if (Trace* trace = std::exchange(traced_, nullptr)) MK_RETURN_IF_ERROR(timeline_->tell(*trace));
  LaunchControl state{};
  failed_ = state_.read(control(), state);
  if (failed_.ok()) failed_ = status_of_launch(state, *group_, topology_, rank_);
  failed_ = failed_.with_context(name_of(kind_));
  return failed_;
}

}  // namespace mkernel::kernels

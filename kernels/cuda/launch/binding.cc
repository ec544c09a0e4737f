#include "kernels/cuda/launch/binding.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/base/lent_workspace.h"
#include "kernels/base/wait_site.h"
#include "kernels/cuda/launch/failure.h"
#include "kernels/cuda/memory/error.h"
#include "kernels/cuda/memory/on_device.h"
#include "kernels/cuda/memory/peer_atomics.h"
#include "kernels/plan/room.h"

namespace mkernel::kernels {
namespace {

int current_device() {
  int device = 0;
  (void)cudaGetDevice(&device);  // the plan has asked this device already
  return device;
}

}  // namespace

CudaBinding::CudaBinding(std::string name, Topology topology, std::uint32_t rank)
    : name_(std::move(name)), topology_(std::move(topology)), rank_(rank), device_(current_device()) {}

Status CudaBinding::load(const CooperativeKernel& kernel, const Machine& machine) {
  const OnDevice here(device_);
  MK_RETURN_IF_ERROR(here.status());
  MK_RETURN_IF_ERROR(load_cooperative(kernel, name_));
  MK_RETURN_IF_ERROR(LaunchTrace::load());
  auto state = LaunchStateReader::make();
  if (!state.ok()) return state.status();
  state_ = std::move(*state);
  MK_RETURN_IF_ERROR(rehearse(kernel, state_.stream().get(), name_));
  kernel_ = kernel;
  machine_ = text_of(machine);
  return {};
}

Status CudaBinding::bind(const Requirements& needs, const GroupView& group, const SymmetricView& workspace,
                         const SymmetricView& lent, std::uint32_t first_lane,
                         const std::function<Status()>& attach) {
  if (group_ != nullptr) return {StatusCode::kFailedPrecondition, name_ + ": bound already"};
  MK_RETURN_IF_ERROR(check_room(name_, needs, topology_, group, workspace, lent, first_lane));
  if (needs.lanes > 0 && rings_ == nullptr)
    return {StatusCode::kFailedPrecondition, name_ + ": no rings to put through"};
  const OnDevice here(device_);
  MK_RETURN_IF_ERROR(here.status());
  if (needs.remote_adds) MK_RETURN_IF_ERROR(check_peer_atomics(name_, workspace.node));
  workspace_ = workspace;
  MK_RETURN_IF_ERROR(open_endpoint(needs, group, workspace, first_lane));
  MK_RETURN_IF_ERROR(state_.watch(endpoint_.control));
  if (needs.lent_bytes > 0) {
    lent_ = lent;
    endpoint_.lent = reinterpret_cast<LentControl*>(lent.mine);
  }
  MK_RETURN_IF_ERROR(attach());
  group_ = &group;
  return {};
}

Status CudaBinding::open_endpoint(const Requirements& needs, const GroupView& group,
                                  const SymmetricView& workspace, std::uint32_t first_lane) {
  if (needs.lanes > 0) {
    // No kernel of an operation meets its node at the endpoint's barrier: any memory will do for its words.
    auto made =
        EndpointOnDevice::make(group, rings_, workspace, {.first_lane = first_lane, .lanes = needs.lanes});
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

device::Endpoint CudaBinding::endpoint(std::uint64_t deadline_ns) const {
  device::Endpoint mine = endpoint_;
  mine.deadline_ns = deadline_ns;
  if (traced_ != nullptr) mine.trace = timeline_->on_device();
  return mine;
}

Status CudaBinding::queue(const void* parameters, std::int32_t ctas, CUstream_st* stream) const {
  return launch_cooperative(kernel_, parameters, ctas, stream, name_);
}

Status CudaBinding::ready() {
  if (group_ != nullptr && failed_.ok() && state_.has_failed()) MK_RETURN_IF_ERROR(status());
  return check_ready(name_, group_ != nullptr, failed_);
}

Status CudaBinding::enqueue(const ExecutorOptions& options, CUstream_st* stream, const Queue& queue) {
  MK_RETURN_IF_ERROR(check_deadline(options.deadline).with_context(name_));
  const OnDevice here(device_);
  MK_RETURN_IF_ERROR(here.status());
  MK_RETURN_IF_ERROR(prepare_trace(options.trace, stream));
  return queue(static_cast<std::uint64_t>(std::chrono::nanoseconds(options.deadline).count()), stream);
}

Status CudaBinding::prepare_trace(Trace* trace, CUstream_st* stream) {
  traced_ = nullptr;
  if (trace == nullptr) return {};
  cudaStreamCaptureStatus capture{};
  MK_RETURN_IF_ERROR(cuda_status(cudaStreamIsCapturing(stream, &capture), "timeline: stream"));
  if (capture != cudaStreamCaptureStatusNone)
    return {StatusCode::kInvalidArgument, name_ + ": a launch that a graph captures is not traced"};
  if (!timeline_) {
    auto made = LaunchTrace::make();
    if (!made.ok()) return made.status();
    timeline_ = std::move(*made);
  }
  MK_RETURN_IF_ERROR(timeline_->clear(stream));
  traced_ = trace;
  return {};
}

Status CudaBinding::run(const ExecutorOptions& options, const Queue& queue) {
  MK_RETURN_IF_ERROR(enqueue(options, state_.stream().get(), queue));
  const OnDevice here(device_);
  MK_RETURN_IF_ERROR(state_.stream().wait(name_));
  return status();
}

Status CudaBinding::read(const void* on_device, void* state, std::uint64_t bytes) const {
  const OnDevice here(device_);
  MK_RETURN_IF_ERROR(here.status());
  return state_.read(on_device, state, bytes).with_context(name_);
}

Status CudaBinding::status() {
  if (group_ == nullptr || !failed_.ok()) return failed_;
  const OnDevice here(device_);
  if (Trace* trace = std::exchange(traced_, nullptr)) MK_RETURN_IF_ERROR(timeline_->tell(*trace));
  LaunchControl state{};
  LentControl lent{};
  failed_ = state_.read(endpoint_.control, state);
  launches_ = state.epoch;
  if (failed_.ok()) failed_ = status_of_launch(state, *group_, topology_, rank_);
  if (failed_.ok() && endpoint_.lent != nullptr) failed_ = state_.read(endpoint_.lent, lent);
  failed_ = failed_.ok() && lent.stopped != 0 ? stopped_by_another(name_) : failed_.with_context(name_);
  return failed_;
}

}  // namespace mkernel::kernels

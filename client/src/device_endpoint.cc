#include "client/src/device_endpoint.h"

#include <utility>

#include "client/src/gpu_memory.h"
#include "kernels/cpu/sync/wait.h"

namespace mkernel::client {
namespace {

Status check_options(const DeviceEndpointOptions& options) {
  if (options.lanes < 1) return {StatusCode::kInvalidArgument, "a device endpoint has at least one lane"};
  return kernels::check_deadline(options.deadline).with_context("device endpoint");
}

}  // namespace

Result<std::unique_ptr<DeviceEndpointState>> DeviceEndpointState::create(
    std::shared_ptr<GroupCore> group, const DeviceEndpointOptions& options) {
  const std::string text = "device endpoint of " + std::to_string(options.lanes) + " lanes";
  Status mine = check_options(options);
  Result<std::shared_ptr<MemorySource>> gpu = mine;
  if (mine.ok()) {
    gpu = group->session().gpu_memory();
    mine = gpu.ok() ? group->pin_segments() : gpu.status();
  }
  MK_RETURN_IF_ERROR(group->agree(text, mine));
  std::unique_ptr<DeviceEndpointState> state(new DeviceEndpointState(group, options.lanes));
  const std::uint64_t bytes = kernels::EndpointOnDevice::workspace_bytes(group->view().world_size());
  auto workspace =
      open_symmetric(group, *gpu.value(), bytes, [&](const BufferState& opened) -> Result<std::string> {
        MK_RETURN_IF_ERROR(state->bind(opened, options));
        return text + " from " + std::to_string(state->first_lane_);
      });
  if (!workspace.ok()) return workspace.status();
  state->workspace_ = std::move(*workspace);
  return state;
}

Status DeviceEndpointState::bind(const BufferState& workspace, const DeviceEndpointOptions& options) {
  const auto first = group_->take_lanes(lanes_, "a device endpoint");
  MK_RETURN_IF_ERROR(first.status());
  first_lane_ = first.value();
  has_lanes_ = true;
  auto rings = group_->session().rings_on_gpu();
  MK_RETURN_IF_ERROR(rings.status());
  const auto device = group_->session().gpu();
  MK_RETURN_IF_ERROR(device.status());
  const auto deadline = std::chrono::nanoseconds(options.deadline).count();
  auto made = make_endpoint_on_gpu(
      device.value(), group_->view(), std::move(*rings), workspace.view,
      {.first_lane = first_lane_, .lanes = lanes_, .deadline_ns = static_cast<std::uint64_t>(deadline)});
  if (made.ok()) endpoint_ = std::move(*made);
  return made.status();
}

DeviceEndpointState::~DeviceEndpointState() {
  endpoint_.reset();
  if (has_lanes_) group_->retire({.first_lane = first_lane_, .lanes = lanes_});
}

Result<device::Peers> DeviceEndpointState::peers(const kernels::SymmetricView& buffer) {
  return peers_on_gpu(*endpoint_, buffer);
}

Status DeviceEndpointState::status() {
  const Status outcome = status_of_launches(*endpoint_);
  if (outcome.ok()) return outcome;
  const Status why = outcome.with_context("device endpoint");
  if (group_->status().ok()) (void)group_->fail(why);  // the other ranks wait for this one: tell them now
  return why;
}

}  // namespace mkernel::client

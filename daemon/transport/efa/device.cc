#include "daemon/transport/efa/device.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "daemon/transport/rdma/dma_buf.h"
#include "daemon/transport/rdma/wake.h"
#include "proto/abi/work_request.h"

namespace mkernel::transport::efa {
Result<std::unique_ptr<Device>> Device::open(const EfaOptions& options, const std::string& name) {
  std::unique_ptr<Device> made(new Device(options));
  MK_RETURN_IF_ERROR(made->open_device(name));
  MK_RETURN_IF_ERROR(made->ask_abilities(options));
  MK_RETURN_IF_ERROR(made->make_objects());
  made->state_ = made->look_at_port();
  return made;
}

/// The device of that name, or the first that libefa says is one of its own.
Status Device::open_device(const std::string& wanted) {
  int count = 0;
  ibv_device** const list = verbs_.get_device_list(&count);
  if (list == nullptr) return rdma::call_failed("EFA transport", "listing RDMA devices", errno);
  Status status;
  std::string names;
  for (int i = 0; i < count && context_ == nullptr && status.ok(); ++i) {
    name_ = verbs_.get_device_name(list[i]);
    names += (names.empty() ? "" : ", ") + name_;
    if (!wanted.empty() && name_ != wanted) continue;
    context_ = rdma::own(verbs_.open_device(list[i]), verbs_.close_device);
    if (context_ == nullptr) {
      status = rdma::call_failed(name_, "opening it (see /dev/infiniband and `mkctl devices`)", errno);
    }
    efadv_device_attr attributes{};
    if (context_ != nullptr && efa_.query_device(context_.get(), &attributes, sizeof(attributes)) != 0) {
      context_.reset();  // some other kind of device
      if (!wanted.empty()) status = {StatusCode::kInvalidArgument, name_ + " is not an EFA device"};
    }
  }
  verbs_.free_device_list(list);
  if (!status.ok() || context_ != nullptr) return status;
  return {StatusCode::kNotFound, (wanted.empty() ? "no EFA device" : "EFA device " + wanted) +
                                     " is there; there are: " + (names.empty() ? "none" : names)};
}

Status Device::ask_abilities(const EfaOptions& options) {
  efadv_device_attr attributes{};
  const int error = efa_.query_device(context_.get(), &attributes, sizeof(attributes));
  if (error != 0) return rdma::call_failed(name_, "asking what it can", error);
  const auto lacks = [&](const std::string& what) {
    return Status(StatusCode::kUnimplemented,
                  name_ + " or its software offers no " + what +
                      ": puts need it (EFA of p5 or later, driver and rdma-core of "
                      "the current EFA installer)");
  };
  if ((attributes.device_caps & rdma::kEfaRdmaWrite) == 0) return lacks("RDMA write");
  if ((attributes.device_caps & rdma::kEfaRnrRetry) == 0) return lacks("RNR retry");
  abilities_.unsolicited = (attributes.device_caps & rdma::kEfaUnsolicitedWriteRecv) != 0;
  abilities_.receive_queue = attributes.max_rq_wr;
  abilities_.max_put_bytes = std::min(attributes.max_rdma_size, abi::kMaxPutBytes);
  abilities_.send_queue = attributes.max_sq_wr;
  if (efa_.max_sq_depth != nullptr) {
    const std::uint32_t wanted = std::min<std::uint32_t>(options.max_inline, attributes.inline_buf_size);
    if (wanted > 0 && depth_with(wanted) > 0) abilities_.inline_bytes = wanted;
    const int depth = depth_with(abilities_.inline_bytes);
    if (depth <= 0) return rdma::call_failed(name_, "asking for the depth of its send queue", -depth);
    abilities_.send_queue = static_cast<std::uint32_t>(depth);
  }
  if (options.send_queue != 0) abilities_.send_queue = std::min(abilities_.send_queue, options.send_queue);
  ibv_device_attr_ex limits{};
  const int refused = verbs_.query_device(context_.get(), &limits);
  if (refused != 0) return rdma::call_failed(name_, "asking for its limits", refused);
  abilities_.max_cqe = static_cast<std::uint32_t>(limits.orig_attr.max_cqe);
  return {};
}

int Device::depth_with(std::uint32_t inline_bytes) const {
  rdma::EfaSqDepth shape;
  shape.max_send_sge = shape.max_rdma_sge = 1;
  shape.max_inline_data = inline_bytes;
  if (inline_bytes > 0) shape.flags = rdma::kEfaSqDepthInlineWrite;
  return efa_.max_sq_depth(context_.get(), &shape, sizeof(shape));
}

Status Device::make_objects() {
  MK_RETURN_IF_ERROR(rdma::make_non_blocking(context_->async_fd, name_));
  pd_ = rdma::own(verbs_.alloc_pd(context_.get()), verbs_.dealloc_pd);
  if (pd_ == nullptr) return rdma::call_failed(name_, "allocating a protection domain", errno);
  channel_ = rdma::own(verbs_.create_comp_channel(context_.get()), verbs_.destroy_comp_channel);
  if (channel_ == nullptr) return rdma::call_failed(name_, "making a completion channel", errno);
  const auto takes = rdma::takes_dma_bufs(verbs_, pd_.get());
  abilities_.dma_buf = takes.ok() && takes.value();
  return rdma::make_non_blocking(channel_->fd, name_);
}

Hello Device::hello() const {
  Hello message{};
  std::memcpy(message.gid, gid_.raw, sizeof(message.gid));
  std::strncpy(message.device, name_.c_str(), sizeof(message.device) - 1);
  return message;
}

Status Device::look_at_port() {
  if (dead_) return {StatusCode::kUnavailable, name_ + ": the device reported a fatal error"};
  if (verbs_.query_gid(context_.get(), 1, 0, &gid_) != 0) {
    return rdma::call_failed(name_, "asking for its address", errno);
  }
  ibv_port_attr attributes{};
  const int error = verbs_.query_port(context_.get(), 1, &attributes);
  if (error != 0) return rdma::call_failed(name_, "asking for its port", error);
  if (attributes.state == IBV_PORT_ACTIVE) return {};
  return {StatusCode::kUnavailable, name_ + " port 1 is " + verbs_.port_state_str(attributes.state)};
}

Device::News Device::take_events() {
  News news;
  ibv_async_event event{};
  while (verbs_.get_async_event(context_.get(), &event) == 0) {
    if (event.event_type != IBV_EVENT_PORT_ACTIVE) {
      news.lost = {StatusCode::kUnavailable, name_ + " reported: " + verbs_.event_type_str(event.event_type)};
    }
    dead_ = dead_ || event.event_type == IBV_EVENT_DEVICE_FATAL;
    news.changed = true;
    verbs_.ack_async_event(&event);
  }
  if (news.changed) state_ = look_at_port();
  return news;
}

}  // namespace mkernel::transport::efa

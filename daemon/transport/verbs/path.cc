#include "daemon/transport/verbs/path.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "daemon/transport/rdma/wake.h"

namespace mkernel::transport::verbs {
namespace {

std::string names_of(const rdma::VerbsLibrary& verbs, ibv_device** list, int count) {
  std::string names;
  for (int i = 0; i < count; ++i) names += (i == 0 ? "" : ", ") + std::string(verbs.get_device_name(list[i]));
  return names.empty() ? "none" : names;
}

}  // namespace

Result<std::unique_ptr<Path>> Path::open(const VerbsOptions& options, const VerbsPort& port,
                                         rdma::Registrar* registrar) {
  std::unique_ptr<Path> made(new Path(options, port));
  MK_RETURN_IF_ERROR(made->open_device());
  MK_RETURN_IF_ERROR(made->make_objects(registrar));
  made->look();
  return made;
}

Status Path::open_device() {
  const rdma::VerbsLibrary& verbs = options_.verbs;
  int count = 0;
  ibv_device** const list = verbs.get_device_list(&count);
  if (list == nullptr) return rdma::call_failed(choice_.device, "listing RDMA devices", errno);
  ibv_device** const found = std::find_if(
      list, list + count, [&](ibv_device* each) { return choice_.device == verbs.get_device_name(each); });
  Status status;
  if (found == list + count) {
    status = {StatusCode::kNotFound,
              "RDMA device " + choice_.device + " is not there; there are: " + names_of(verbs, list, count)};
  } else {
    context_ = rdma::own(verbs.open_device(*found), verbs.close_device);
    const int error = errno;
    if (context_ == nullptr) {
      status =
          rdma::call_failed(choice_.device, "opening it (see /dev/infiniband and `mkctl devices`)", error);
    }
  }
  verbs.free_device_list(list);
  return status;
}

Status Path::make_objects(rdma::Registrar* registrar) {
  const rdma::VerbsLibrary& verbs = options_.verbs;
  const std::string& device = choice_.device;
  MK_RETURN_IF_ERROR(rdma::make_non_blocking(context_->async_fd, device));
  pd_ = rdma::own(verbs.alloc_pd(context_.get()), verbs.dealloc_pd);
  if (pd_ == nullptr) return rdma::call_failed(device, "allocating a protection domain", errno);
  channel_ = rdma::own(verbs.create_comp_channel(context_.get()), verbs.destroy_comp_channel);
  if (channel_ == nullptr) return rdma::call_failed(device, "making a completion channel", errno);
  MK_RETURN_IF_ERROR(rdma::make_non_blocking(channel_->fd, device));
  quiet_cq_ = rdma::own(verbs.create_cq(context_.get(), 1, nullptr, nullptr, 0), verbs.destroy_cq);
  if (quiet_cq_ == nullptr) return rdma::call_failed(device, "making a completion queue", errno);
  registrations_ = std::make_unique<rdma::Registrations>(
      rdma::Domain{&verbs, pd_, device, options_.chunk_bytes, registrar});
  return {};
}

bool Path::look() {
  const Port before = port_;
  const bool was_up = state_.ok();
  state_ = look_at_port();
  return was_up != state_.ok() || std::memcmp(&before, &port_, sizeof(Port)) != 0;
}

Status Path::look_at_port() {
  const std::string what = choice_.device + " port " + std::to_string(choice_.number);
  if (device_dead_) return {StatusCode::kUnavailable, what + ": the device reported a fatal error"};
  ibv_port_attr attributes{};
  const int error = options_.verbs.query_port(context_.get(), choice_.number, &attributes);
  if (error != 0)
    return rdma::call_failed(choice_.device, "asking for port " + std::to_string(choice_.number), error);
  if (attributes.state != IBV_PORT_ACTIVE)
    return {StatusCode::kUnavailable, what + " is " + options_.verbs.port_state_str(attributes.state)};
  // After the state: a port that is down need not have its table of GIDs read, which takes a while.
  if (options_.choose_again) {
    const auto choice = options_.choose_again(choice_);
    if (!choice) return {StatusCode::kUnavailable, what + " has no GID that can be used, or is down"};
    choice_ = *choice;
  }
  port_ = {};
  std::memcpy(port_.gid, choice_.gid.data(), sizeof(port_.gid));
  port_.lid = attributes.lid;
  port_.mtu = static_cast<std::uint8_t>(attributes.active_mtu);
  port_.link_layer = attributes.link_layer;
  port_.number = choice_.number;
  std::strncpy(port_.device, choice_.device.c_str(), sizeof(port_.device) - 1);
  max_message_bytes_ = attributes.max_msg_sz;
  return {};
}

Path::News Path::take_events() {
  News news;
  bool look_again = false;  // once, however many events a cable that is pulled makes
  ibv_async_event event{};
  while (options_.verbs.get_async_event(context_.get(), &event) == 0) {
    switch (event.event_type) {
      case IBV_EVENT_DEVICE_FATAL:
        device_dead_ = true;
        look_again = true;
        break;
      case IBV_EVENT_PORT_ACTIVE:
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_LID_CHANGE:
      case IBV_EVENT_PKEY_CHANGE:
      case IBV_EVENT_SM_CHANGE:
      case IBV_EVENT_GID_CHANGE:
        if (event.element.port_num == choice_.number) look_again = true;
        break;
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_PATH_MIG_ERR:
        news.broken.push_back({event.element.qp->qp_num, event.event_type == IBV_EVENT_QP_ACCESS_ERR});
        break;
      default: break;
    }
    options_.verbs.ack_async_event(&event);
  }
  if (look_again) news.changed = look();
  return news;
}

}  // namespace mkernel::transport::verbs

// Devices, what they say about themselves, and asynchronous events.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/support/fake_nic/hosts.h"
#include "tests/support/fake_nic/objects.h"

namespace mkernel::test::nic {
namespace {

const PortSettings* port_of(const Device& device, std::uint32_t port) {
  if (port < 1 || port > device.settings.ports.size()) return nullptr;
  return &device.settings.ports[port - 1];
}

void free_device_list(ibv_device** list) {
  delete[] list;
}

const char* get_device_name(ibv_device* device) {
  return device->name;
}

ibv_context* open_device(ibv_device* verbs) {
  Device& device = *static_cast<Device*>(verbs);
  const std::lock_guard held(device.fabric->lock);
  if (device.settings.open_error != 0) return fail(device.settings.open_error);
  auto* const context = new Context();
  context->device = &device;
  context->sz = sizeof(verbs_context);
  context->context.device = verbs;
  context->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  context->context.num_comp_vectors = 1;
  context->context.cmd_fd = -1;
  context->context.async_fd = ::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  const bool null = device.settings.null_queues;
  context->context.ops.poll_cq = null ? null_poll_cq : poll_cq;
  context->context.ops.req_notify_cq = req_notify_cq;
  context->context.ops.post_send = null ? null_post_send : post_send;
  context->context.ops.post_recv = post_recv;
  device.contexts.insert(context);
  return &context->context;
}

int close_device(ibv_context* verbs) {
  Context* const context = of(verbs);
  Device& device = *context->device;
  const std::lock_guard held(device.fabric->lock);
  for (const std::string& object : context->alive) {
    device.fabric->complaints.push_back(device.settings.name + " was closed before " + object +
                                        " was destroyed");
  }
  device.contexts.erase(context);
  ::close(verbs->async_fd);
  delete context;
  return 0;
}

int query_device(ibv_context* verbs, ibv_device_attr_ex* out) {
  Device& device = *of(verbs)->device;
  const std::lock_guard held(device.fabric->lock);
  if (device.dead) return EIO;
  *out = {};
  ibv_device_attr& base = out->orig_attr;
  std::strncpy(base.fw_ver, "1.0.fake", sizeof(base.fw_ver) - 1);
  base.max_mr_size = ~std::uint64_t{0};
  base.page_size_cap = ~std::uint64_t{4095};
  base.max_qp = 1 << 16;
  base.max_qp_wr = static_cast<int>(std::max(device.settings.max_send_wr, device.settings.max_recv_wr));
  base.max_sge = static_cast<int>(device.settings.max_sge);
  base.max_cq = 1 << 16;
  base.max_cqe = static_cast<int>(device.settings.max_cqe);
  base.max_mr = 1 << 20;
  base.max_pd = 1 << 16;
  base.max_qp_rd_atom = 16;
  base.max_qp_init_rd_atom = 16;
  base.max_ah = 1 << 16;
  base.max_pkeys = 1;
  base.phys_port_cnt = static_cast<std::uint8_t>(device.settings.ports.size());
  return 0;
}

int query_port(ibv_context* verbs, std::uint8_t number, ibv_port_attr* out) {
  Device& device = *of(verbs)->device;
  const std::lock_guard held(device.fabric->lock);
  if (device.dead) return EIO;
  const PortSettings* const port = port_of(device, number);
  if (port == nullptr) return EINVAL;
  *out = {};
  out->state = port->state;
  out->max_mtu = IBV_MTU_4096;
  out->active_mtu = port->mtu;
  out->gid_tbl_len = static_cast<int>(port->gids.size()) + 2;  // two slots are empty
  out->max_msg_sz = 1U << 30;
  out->pkey_tbl_len = 1;
  out->lid = port->link_layer == IBV_LINK_LAYER_INFINIBAND ? port->lid : 0;
  out->active_width = 2;   // 4x
  out->active_speed = 64;  // HDR: 50 Gbit/s a lane
  out->phys_state = port->state == IBV_PORT_ACTIVE ? 5 : 3;
  out->link_layer = port->link_layer;
  return 0;
}

int query_gid_ex(ibv_context* verbs, std::uint32_t number, std::uint32_t index, ibv_gid_entry* out) {
  Device& device = *of(verbs)->device;
  const std::lock_guard held(device.fabric->lock);
  const PortSettings* const port = port_of(device, number);
  if (device.dead || port == nullptr) return device.dead ? EIO : EINVAL;
  if (index >= port->gids.size()) return index < port->gids.size() + 2 ? ENODATA : EINVAL;
  *out = {};
  out->gid = port->gids[index].gid;
  out->gid_index = index;
  out->port_num = number;
  out->gid_type = port->gids[index].type;
  return 0;
}

int query_gid(ibv_context* verbs, std::uint8_t number, int index, ibv_gid* out) {
  ibv_gid_entry entry;
  *out = {};
  const int error = query_gid_ex(verbs, number, static_cast<std::uint32_t>(index), &entry);
  if (error == ENODATA) return 0;  // an empty slot reads as zeros
  if (error != 0) {
    errno = error;
    return -1;
  }
  *out = entry.gid;
  return 0;
}

int query_pkey(ibv_context* verbs, std::uint8_t number, int index, __be16* out) {
  Device& device = *of(verbs)->device;
  if (port_of(device, number) == nullptr || index != 0) return -1;
  *out = 0xffff;
  return 0;
}

int get_async_event(ibv_context* verbs, ibv_async_event* out) {
  std::uint64_t one = 0;
  if (::read(verbs->async_fd, &one, sizeof(one)) != sizeof(one)) return -1;
  Context* const context = of(verbs);
  const std::lock_guard held(context->device->fabric->lock);
  if (context->events.empty()) {  // its object went between the read and the lock
    errno = EAGAIN;
    return -1;
  }
  *out = context->events.front();
  context->events.pop_front();
  if (out->event_type == IBV_EVENT_CQ_ERR) ++of(out->element.cq)->async_reported;
  if (of_queue_pair(*out)) ++of(out->element.qp)->reported;
  return 0;
}

void ack_async_event(ibv_async_event* event) {
  if (event->event_type == IBV_EVENT_CQ_ERR) {
    const std::lock_guard held(device_of(event->element.cq).fabric->lock);
    ++event->element.cq->async_events_completed;
  } else if (of_queue_pair(*event)) {
    const std::lock_guard held(device_of(event->element.qp).fabric->lock);
    ++event->element.qp->events_completed;
  }
}

const char* wc_status_str(ibv_wc_status status) {
  static constexpr const char* kNames[] = {"success",
                                           "local length error",
                                           "local QP operation error",
                                           "local EE context operation error",
                                           "local protection error",
                                           "Work Request Flushed Error",
                                           "memory management operation error",
                                           "bad response error",
                                           "local access error",
                                           "remote invalid request error",
                                           "remote access error",
                                           "remote operation error",
                                           "transport retry counter exceeded",
                                           "RNR retry counter exceeded"};
  return status < std::size(kNames) ? kNames[status] : "unknown";
}

const char* event_type_str(ibv_event_type event) {
  switch (event) {
    case IBV_EVENT_CQ_ERR: return "CQ error";
    case IBV_EVENT_QP_FATAL: return "local work queue catastrophic error";
    case IBV_EVENT_QP_REQ_ERR: return "invalid request local work queue error";
    case IBV_EVENT_QP_ACCESS_ERR: return "local access violation work queue error";
    case IBV_EVENT_DEVICE_FATAL: return "local catastrophic error";
    case IBV_EVENT_PORT_ACTIVE: return "port active";
    case IBV_EVENT_PORT_ERR: return "port error";
    case IBV_EVENT_GID_CHANGE: return "GID table change";
    default: return "unknown";
  }
}

const char* port_state_str(ibv_port_state state) {
  static constexpr const char* kNames[] = {"invalid state", "down",   "init",
                                           "armed",         "active", "active defer"};
  return state < std::size(kNames) ? kNames[state] : "unknown";
}

}  // namespace

std::string name_of(const char* kind, std::uint32_t handle) {
  return std::string(kind) + " " + std::to_string(handle);
}

void signal(int event_fd) {
  const std::uint64_t one = 1;
  if (::write(event_fd, &one, sizeof(one)) != sizeof(one)) std::abort();  // the counter cannot be full
}

void raise(Device& device, const ibv_async_event& event) {
  for (Context* const context : device.contexts) {
    context->events.push_back(event);
    signal(context->context.async_fd);
  }
}

void raise_qp(Qp& qp, ibv_event_type type) {
  Context* const context = of(qp.qp_base.context);
  ibv_async_event event{};
  event.element.qp = base_of(&qp);
  event.event_type = type;
  context->events.push_back(event);
  signal(context->context.async_fd);
}

bool of_queue_pair(const ibv_async_event& event) {
  return event.event_type == IBV_EVENT_QP_FATAL || event.event_type == IBV_EVENT_QP_REQ_ERR ||
         event.event_type == IBV_EVENT_QP_ACCESS_ERR;
}

void forget_async_events(Context& context, const std::function<bool(const ibv_async_event&)>& which) {
  std::uint64_t one = 0;
  for (auto gone = std::erase_if(context.events, which); gone > 0; --gone) {
    if (::read(context.context.async_fd, &one, sizeof(one)) != sizeof(one)) return;
  }
}

transport::rdma::VerbsLibrary table(const Host& host) {
  transport::rdma::VerbsLibrary verbs;
  verbs.get_device_list = lister(host.slot);
  verbs.free_device_list = free_device_list;
  verbs.get_device_name = get_device_name;
  verbs.open_device = open_device;
  verbs.close_device = close_device;
  verbs.query_device = query_device;
  verbs.query_port = query_port;
  verbs.query_gid = query_gid;
  verbs.query_gid_ex = query_gid_ex;
  verbs.query_pkey = query_pkey;
  verbs.get_async_event = get_async_event;
  verbs.ack_async_event = ack_async_event;
  verbs.wc_status_str = wc_status_str;
  verbs.event_type_str = event_type_str;
  verbs.port_state_str = port_state_str;
  fill_memory_calls(verbs);
  fill_completion_calls(verbs);
  fill_queue_calls(verbs);
  return verbs;
}

}  // namespace mkernel::test::nic

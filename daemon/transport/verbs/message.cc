#include "daemon/transport/verbs/message.h"

#include <arpa/inet.h>

#include "daemon/base/printable.h"

namespace mkernel::transport::verbs {
namespace {

using rdma::wrong_message;

std::size_t size_of(MessageType type) {
  switch (type) {
    case MessageType::kOpen: return sizeof(Open);
    case MessageType::kClose: return sizeof(Message);
    case MessageType::kOpened: return sizeof(Opened);
    case MessageType::kAttach:
    case MessageType::kStopped:
    case MessageType::kStop: return sizeof(ChannelMessage);
    case MessageType::kHeld: return sizeof(Held);
    case MessageType::kNotOpened:
    case MessageType::kBroken:
    case MessageType::kWriteRefused: return sizeof(Refusal);
    default: return 0;
  }
}

Status check_port(const Port& port) {
  if (port.mtu < IBV_MTU_256 || port.mtu > IBV_MTU_4096)
    return wrong_message("MTU " + std::to_string(port.mtu));
  if (port.link_layer != IBV_LINK_LAYER_INFINIBAND && port.link_layer != IBV_LINK_LAYER_ETHERNET) {
    return wrong_message("link layer " + std::to_string(port.link_layer));
  }
  if (port.lid > 0xffff) return wrong_message("LID " + std::to_string(port.lid));
  MK_RETURN_IF_ERROR(rdma::check_device_name(port.device));
  return base::is_printable(port.device) ? Status() : wrong_message("device name is not printable");
}

/// Open or Opened.
template <typename T>
Status check_end(const T& message) {
  MK_RETURN_IF_ERROR(rdma::check_qpn(message.qpn));
  if (message.psn > 0xffffff) return wrong_message("PSN " + std::to_string(message.psn));
  return check_port(message.port);
}

Status check(MessageType type, std::span<const std::byte> bytes) {
  if (type == MessageType::kOpen) return check_end(read_as<Open>(bytes));
  if (type == MessageType::kOpened) return check_end(read_as<Opened>(bytes));
  return {};
}

}  // namespace

Status check_message(std::span<const std::byte> bytes) {
  return rdma::check_message(bytes, {size_of, check});
}

std::string text_of(const Port& port) {
  char gid[INET6_ADDRSTRLEN];
  return std::string(port.device) + " port " + std::to_string(port.number) + " (GID " +
         ::inet_ntop(AF_INET6, port.gid, gid, sizeof(gid)) +
         (port.lid != 0 ? ", LID " + std::to_string(port.lid) : "") + ")";
}

}  // namespace mkernel::transport::verbs

#include "daemon/transport/efa/message.h"

#include <arpa/inet.h>

#include "daemon/base/printable.h"
#include "daemon/transport/efa/immediate.h"
#include "daemon/transport/rdma/routes.h"

namespace mkernel::transport::efa {
namespace {

using rdma::wrong_message;

std::size_t size_of(MessageType type) {
  switch (type) {
    case MessageType::kHello:
    case MessageType::kWelcome:
    case MessageType::kTry:
    case MessageType::kTried: return sizeof(Hello);
    case MessageType::kReady:
    case MessageType::kTryOver: return sizeof(Message);
    case MessageType::kAttach: return sizeof(Attach);
    case MessageType::kDetached: return sizeof(ChannelMessage);
    case MessageType::kReleased:
    case MessageType::kTaken: return sizeof(NumberMessage);
    case MessageType::kHeld: return sizeof(Held);
    case MessageType::kLost:
    case MessageType::kTryLost: return sizeof(Refusal);
    default: return 0;
  }
}

Status check_hello(const Hello& hello) {
  MK_RETURN_IF_ERROR(rdma::check_qpn(hello.qpn));
  if (hello.path >= rdma::kMaxPaths) return wrong_message("path " + std::to_string(hello.path));
  MK_RETURN_IF_ERROR(rdma::check_device_name(hello.device));
  if (hello.window == 0 || hello.window > kMaxWindow) {
    return wrong_message("a window of " + std::to_string(hello.window) + " puts");
  }
  return hello.credit > 0 ? Status() : wrong_message("a credit of no puts");
}

Status check_number(std::uint32_t number) {
  return number < kMaxChannels ? Status() : wrong_message("channel number " + std::to_string(number));
}

Status check(MessageType type, std::span<const std::byte> bytes) {
  switch (type) {
    case MessageType::kHello:
    case MessageType::kWelcome:
    case MessageType::kTry:
    case MessageType::kTried: return check_hello(read_as<Hello>(bytes));
    case MessageType::kResolved:
      return read_as<Message>(bytes).count == 1 ? Status() : wrong_message("a region in several chunks");
    case MessageType::kHeld: return check_number(read_as<Held>(bytes).index);
    case MessageType::kReleased:
    case MessageType::kTaken: return check_number(read_as<NumberMessage>(bytes).number);
    default: return {};
  }
}

}  // namespace

Status check_message(std::span<const std::byte> bytes) {
  return rdma::check_message(bytes, {size_of, check});
}

std::string text_of(const Hello& end) {
  char gid[INET6_ADDRSTRLEN];
  std::string text =
      base::one_line(end.device) + " port 1 (GID " + ::inet_ntop(AF_INET6, end.gid, gid, sizeof(gid));
  if (end.qpn != 0) text += ", QPN " + std::to_string(end.qpn);
  return text + ")";
}

}  // namespace mkernel::transport::efa

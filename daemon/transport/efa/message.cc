#include "daemon/transport/efa/message.h"

#include <arpa/inet.h>

#include "daemon/base/printable.h"
#include "daemon/transport/efa/immediate.h"
#include "daemon/transport/rdma/routes.h"
#include "proto/ipc/packet.h"

namespace mkernel::transport::efa {
namespace {

Status wrong(const std::string& what) {
  return {StatusCode::kInvalidArgument, "message of an EFA transport: " + what};
}

/// 0 for a type that does not exist.
std::size_t size_of(MessageType type) {
  switch (type) {
    case MessageType::kHello:
    case MessageType::kWelcome:
    case MessageType::kTry:
    case MessageType::kTried: return sizeof(Hello);
    case MessageType::kReady:
    case MessageType::kTryOver: return sizeof(Message);
    case MessageType::kAttach: return sizeof(Attach);
    case MessageType::kDetach:
    case MessageType::kDetached: return sizeof(ChannelMessage);
    case MessageType::kResolve:
    case MessageType::kRevoke:
    case MessageType::kRevoked: return sizeof(RegionMessage);
    case MessageType::kReleased:
    case MessageType::kTaken: return sizeof(NumberMessage);
    case MessageType::kAttached: return sizeof(Attached);
    case MessageType::kResolved: return sizeof(Resolved);
    case MessageType::kLost:
    case MessageType::kGivenUp:
    case MessageType::kTryLost:
    case MessageType::kRefused: return sizeof(Refusal);
  }
  return 0;
}

Status check_region(std::uint32_t region) {
  return region < abi::kMaxRegions ? Status() : wrong("region " + std::to_string(region));
}

Status check_hello(const Hello& hello) {
  if (hello.qpn > 0xffffff) return wrong("QPN " + std::to_string(hello.qpn));
  if (hello.path >= rdma::kMaxPaths) return wrong("path " + std::to_string(hello.path));
  if (std::memchr(hello.device, 0, sizeof(hello.device)) == nullptr) return wrong("device name without end");
  if (hello.window == 0 || hello.window > kMaxWindow) {
    return wrong("a window of " + std::to_string(hello.window) + " puts");
  }
  return hello.credit > 0 ? Status() : wrong("a credit of no puts");
}

Status check_refusal(const Refusal& refusal) {
  if (refusal.code == 0 || to_string(StatusCode{refusal.code}) == "UNKNOWN") {
    return wrong("refused with code " + std::to_string(refusal.code));
  }
  if (std::memchr(refusal.text, 0, sizeof(refusal.text)) == nullptr) return wrong("text without end");
  return {};
}

Status check_number(std::uint32_t number) {
  return number < kMaxChannels ? Status() : wrong("channel number " + std::to_string(number));
}

}  // namespace

Status check_message(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Message)) return wrong(std::to_string(bytes.size()) + " bytes");
  const auto head = read_as<Message>(bytes);
  const std::string type = std::to_string(static_cast<unsigned>(head.type));
  if (head.version != kMessageVersion) {
    return wrong("version " + std::to_string(head.version) + ", this daemon speaks " +
                 std::to_string(kMessageVersion));
  }
  const std::size_t expected = size_of(head.type);
  if (expected == 0) return wrong("type " + type);
  if (bytes.size() != expected) {
    return wrong("type " + type + " with " + std::to_string(bytes.size()) + " bytes, it has " +
                 std::to_string(expected));
  }
  switch (head.type) {
    case MessageType::kHello:
    case MessageType::kWelcome:
    case MessageType::kTry:
    case MessageType::kTried: return check_hello(read_as<Hello>(bytes));
    case MessageType::kResolve:
    case MessageType::kRevoke:
    case MessageType::kRevoked: return check_region(read_as<RegionMessage>(bytes).region);
    case MessageType::kResolved: return check_region(read_as<Resolved>(bytes).region);
    case MessageType::kAttached: return check_number(read_as<Attached>(bytes).index);
    case MessageType::kReleased:
    case MessageType::kTaken: return check_number(read_as<NumberMessage>(bytes).number);
    case MessageType::kLost:
    case MessageType::kGivenUp:
    case MessageType::kTryLost:
    case MessageType::kRefused: return check_refusal(read_as<Refusal>(bytes));
    default: return {};
  }
}

Refusal refusal(const Message& head, const Status& why, std::uint64_t key) {
  Refusal message{head, key, static_cast<std::uint32_t>(why.code()), 0, {}};
  ipc::copy_text(message.text, why.text());
  return message;
}

Status status_of(const Refusal& refusal) {
  return {StatusCode{refusal.code}, base::one_line(refusal.text)};
}

std::string text_of(const Hello& end) {
  char gid[INET6_ADDRSTRLEN];
  std::string text =
      base::one_line(end.device) + " port 1 (GID " + ::inet_ntop(AF_INET6, end.gid, gid, sizeof(gid));
  if (end.qpn != 0) text += ", QPN " + std::to_string(end.qpn);
  return text + ")";
}

}  // namespace mkernel::transport::efa

#include "daemon/transport/verbs/message.h"

#include <arpa/inet.h>

#include <bit>

#include "daemon/base/printable.h"
#include "proto/ipc/packet.h"

namespace mkernel::transport::verbs {
namespace {

Status wrong(const std::string& what) {
  return {StatusCode::kInvalidArgument, "message of a verbs transport: " + what};
}

/// 0 for a type that does not exist.
std::size_t size_of(const Message& head) {
  switch (head.type) {
    case MessageType::kOpen: return sizeof(Open);
    case MessageType::kClose: return sizeof(Message);
    case MessageType::kAttach:
    case MessageType::kDetach:
    case MessageType::kStopped:
    case MessageType::kStop: return sizeof(ChannelMessage);
    case MessageType::kResolve:
    case MessageType::kRevoke:
    case MessageType::kRevoked: return sizeof(RegionMessage);
    case MessageType::kOpened: return sizeof(Opened);
    case MessageType::kAttached: return sizeof(Attached);
    case MessageType::kResolved: return sizeof(Resolved) + head.count * sizeof(RemoteChunk);
    case MessageType::kGivenUp:
    case MessageType::kNotOpened:
    case MessageType::kBroken:
    case MessageType::kRefused:
    case MessageType::kWriteRefused: return sizeof(Refusal);
  }
  return 0;
}

Status check_port(const Port& port) {
  if (port.mtu < IBV_MTU_256 || port.mtu > IBV_MTU_4096) return wrong("MTU " + std::to_string(port.mtu));
  if (port.link_layer != IBV_LINK_LAYER_INFINIBAND && port.link_layer != IBV_LINK_LAYER_ETHERNET) {
    return wrong("link layer " + std::to_string(port.link_layer));
  }
  if (port.lid > 0xffff) return wrong("LID " + std::to_string(port.lid));
  if (std::memchr(port.device, 0, sizeof(port.device)) == nullptr) return wrong("device name without end");
  if (!base::is_printable(port.device)) return wrong("device name is not printable");
  return {};
}

Status check_queue(std::uint32_t qpn, std::uint32_t psn) {
  if (qpn > 0xffffff) return wrong("QPN " + std::to_string(qpn));
  if (psn > 0xffffff) return wrong("PSN " + std::to_string(psn));
  return {};
}

Status check_region(std::uint32_t region) {
  return region < abi::kMaxRegions ? Status() : wrong("region " + std::to_string(region));
}

/// Every byte of the region lies in exactly one chunk.
Status check_chunks(const Resolved& resolved) {
  if (resolved.bytes == 0) return wrong("region of no bytes");
  if (!std::has_single_bit(resolved.chunk_bytes)) {
    return wrong("chunks of " + std::to_string(resolved.chunk_bytes) + " bytes, not a power of two");
  }
  const std::uint64_t chunks =
      resolved.bytes / resolved.chunk_bytes + (resolved.bytes % resolved.chunk_bytes == 0 ? 0 : 1);
  if (chunks == resolved.head.count) return {};
  return wrong(std::to_string(resolved.head.count) + " chunks of " + std::to_string(resolved.chunk_bytes) +
               " bytes for a region of " + std::to_string(resolved.bytes));
}

Status check_refusal(const Refusal& refusal) {
  if (refusal.code == 0 || to_string(StatusCode{refusal.code}) == "UNKNOWN") {
    return wrong("refused with code " + std::to_string(refusal.code));
  }
  if (std::memchr(refusal.text, 0, sizeof(refusal.text)) == nullptr) return wrong("text without end");
  return {};
}

}  // namespace

Status check_message(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Message)) return wrong(std::to_string(bytes.size()) + " bytes");
  const auto head = read_as<Message>(bytes);
  if (head.version != kMessageVersion) {
    return wrong("version " + std::to_string(head.version) + ", this daemon speaks " +
                 std::to_string(kMessageVersion));
  }
  if (head.count > kMaxChunks || (head.count > 0 && head.type != MessageType::kResolved)) {
    return wrong(std::to_string(head.count) + " chunks");
  }
  const std::size_t expected = size_of(head);
  if (expected == 0) return wrong("type " + std::to_string(static_cast<unsigned>(head.type)));
  if (bytes.size() != expected) {
    return wrong("type " + std::to_string(static_cast<unsigned>(head.type)) + " with " +
                 std::to_string(bytes.size()) + " bytes, it has " + std::to_string(expected));
  }
  switch (head.type) {
    case MessageType::kOpen: {
      const auto open = read_as<Open>(bytes);
      MK_RETURN_IF_ERROR(check_queue(open.qpn, open.psn));
      return check_port(open.port);
    }
    case MessageType::kOpened: {
      const auto opened = read_as<Opened>(bytes);
      MK_RETURN_IF_ERROR(check_queue(opened.qpn, opened.psn));
      return check_port(opened.port);
    }
    case MessageType::kResolve:
    case MessageType::kRevoke:
    case MessageType::kRevoked: return check_region(read_as<RegionMessage>(bytes).region);
    case MessageType::kResolved:
      MK_RETURN_IF_ERROR(check_region(read_as<Resolved>(bytes).region));
      return check_chunks(read_as<Resolved>(bytes));
    case MessageType::kGivenUp:
    case MessageType::kNotOpened:
    case MessageType::kBroken:
    case MessageType::kRefused:
    case MessageType::kWriteRefused: return check_refusal(read_as<Refusal>(bytes));
    default: return {};
  }
}

std::vector<RemoteChunk> chunks_of(std::span<const std::byte> bytes) {
  std::vector<RemoteChunk> chunks(read_as<Message>(bytes).count);
  std::memcpy(chunks.data(), bytes.data() + sizeof(Resolved), chunks.size() * sizeof(RemoteChunk));
  return chunks;
}

Refusal refusal(const Message& head, const Status& why, std::uint64_t key, bool final) {
  Refusal message{head, key, static_cast<std::uint32_t>(why.code()), final ? 1U : 0U, {}};
  ipc::copy_text(message.text, why.text());
  return message;
}

Status status_of(const Refusal& refusal) {
  return {StatusCode{refusal.code}, base::one_line(refusal.text)};
}

std::string text_of(const Port& port) {
  char gid[INET6_ADDRSTRLEN];
  return std::string(port.device) + " port " + std::to_string(port.number) + " (GID " +
         ::inet_ntop(AF_INET6, port.gid, gid, sizeof(gid)) +
         (port.lid != 0 ? ", LID " + std::to_string(port.lid) : "") + ")";
}

}  // namespace mkernel::transport::verbs

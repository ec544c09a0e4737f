#include "daemon/transport/rdma/message.h"

#include <algorithm>
#include <bit>

#include "daemon/base/printable.h"
#include "proto/ipc/packet.h"

namespace mkernel::transport::rdma {
namespace {

std::size_t size_of(const Message& head, const Dialect& dialect) {
  switch (head.type) {
    case MessageType::kDetach: return sizeof(ChannelMessage);
    case MessageType::kResolve:
    case MessageType::kRevoke:
    case MessageType::kRevoked: return sizeof(RegionMessage);
    case MessageType::kResolved: return sizeof(Resolved) + head.count * sizeof(RemoteChunk);
    case MessageType::kGivenUp:
    case MessageType::kRefused: return sizeof(Refusal);
    default: return dialect.size_of(head.type);
  }
}

Status check_region(std::uint32_t region) {
  return region < abi::kMaxRegions ? Status() : wrong_message("region " + std::to_string(region));
}

/// Every byte of the region lies in exactly one chunk.
Status check_chunks(const Resolved& resolved) {
  if (resolved.bytes == 0) return wrong_message("region of no bytes");
  if (!std::has_single_bit(resolved.chunk_bytes)) {
    return wrong_message("chunks of " + std::to_string(resolved.chunk_bytes) + " bytes, not a power of two");
  }
  const std::uint64_t chunks =
      resolved.bytes / resolved.chunk_bytes + (resolved.bytes % resolved.chunk_bytes == 0 ? 0 : 1);
  if (chunks == resolved.head.count) return {};
  return wrong_message(std::to_string(resolved.head.count) + " chunks of " +
                       std::to_string(resolved.chunk_bytes) + " bytes for a region of " +
                       std::to_string(resolved.bytes));
}

Status check_refusal(const Refusal& refusal) {
  if (refusal.code == 0 || to_string(StatusCode{refusal.code}) == "UNKNOWN") {
    return wrong_message("refused with code " + std::to_string(refusal.code));
  }
  if (std::memchr(refusal.text, 0, sizeof(refusal.text)) == nullptr) return wrong_message("text without end");
  return {};
}

/// The fields of a message that both transports have.
Status check_common(MessageType type, std::span<const std::byte> bytes) {
  switch (type) {
    case MessageType::kResolve:
    case MessageType::kRevoke:
    case MessageType::kRevoked: return check_region(read_as<RegionMessage>(bytes).region);
    case MessageType::kResolved:
      MK_RETURN_IF_ERROR(check_region(read_as<Resolved>(bytes).region));
      return check_chunks(read_as<Resolved>(bytes));
    // No other message has the size of a refusal.
    default: return bytes.size() == sizeof(Refusal) ? check_refusal(read_as<Refusal>(bytes)) : Status();
  }
}

}  // namespace

Status wrong_message(const std::string& what) {
  return {StatusCode::kInvalidArgument, "message of an RDMA transport: " + what};
}

Status check_qpn(std::uint32_t qpn) {
  return qpn <= 0xffffff ? Status() : wrong_message("QPN " + std::to_string(qpn));
}

Status check_device_name(std::span<const char> name) {
  return std::find(name.begin(), name.end(), '\0') != name.end() ? Status()
                                                                 : wrong_message("device name without end");
}

Status check_message(std::span<const std::byte> bytes, const Dialect& dialect) {
  if (bytes.size() < sizeof(Message)) return wrong_message(std::to_string(bytes.size()) + " bytes");
  const auto head = read_as<Message>(bytes);
  if (head.version != kMessageVersion) {
    return wrong_message("version " + std::to_string(head.version) + ", this daemon speaks " +
                         std::to_string(kMessageVersion));
  }
  if (head.count > kMaxChunks || (head.count > 0 && head.type != MessageType::kResolved)) {
    return wrong_message(std::to_string(head.count) + " chunks");
  }
  const std::string type = "type " + std::to_string(static_cast<unsigned>(head.type));
  const std::size_t expected = size_of(head, dialect);
  if (expected == 0) return wrong_message(type);
  if (bytes.size() != expected) {
    return wrong_message(type + " with " + std::to_string(bytes.size()) + " bytes, it has " +
                         std::to_string(expected));
  }
  MK_RETURN_IF_ERROR(check_common(head.type, bytes));
  return dialect.check(head.type, bytes);
}

std::vector<std::byte> resolved_with(Resolved resolved, std::span<const RemoteChunk> chunks) {
  resolved.head.count = static_cast<std::uint32_t>(chunks.size());
  std::vector<std::byte> bytes(sizeof(resolved) + chunks.size_bytes());
  std::memcpy(bytes.data(), &resolved, sizeof(resolved));
  std::memcpy(bytes.data() + sizeof(resolved), chunks.data(), chunks.size_bytes());
  return bytes;
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

}  // namespace mkernel::transport::rdma

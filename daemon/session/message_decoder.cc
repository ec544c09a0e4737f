#include "daemon/session/message_decoder.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace mkernel::session {
namespace {

Status malformed(const std::string& what) {
  return {StatusCode::kInvalidArgument, what};
}

template <std::size_t Size>
bool is_zero(const std::uint8_t (&field)[Size]) {
  return std::all_of(std::begin(field), std::end(field), [](std::uint8_t byte) { return byte == 0; });
}

template <std::size_t Size>
Status check_text(const char (&field)[Size], const char* name) {
  if (std::memchr(field, 0, Size) != nullptr) return {};
  return malformed(std::string(name) + " has no terminating zero within its " + std::to_string(Size) +
                   " bytes");
}

Status check_reserved(bool zero, const char* name) {
  return zero ? Status() : malformed(std::string(name) + ": reserved bytes are not zero");
}

// What is wrong inside one message, beyond its size and fds.
Status check(const abi::Hello& hello) {
  return check_text(hello.client_name, "hello.client_name");
}
Status check(const abi::JoinGroup& join) {
  MK_RETURN_IF_ERROR(check_text(join.name, "join_group.name"));
  return check_reserved(is_zero(join.reserved), "join_group");
}
Status check(const abi::LeaveGroup& leave) {
  return check_reserved(is_zero(leave.reserved), "leave_group");
}
bool is_zero(const abi::IpcMemory& memory) {
  return is_zero(memory.handle) && is_zero(memory.gpu);
}
bool is_ipc(const abi::RegisterRegion& region) {
  return static_cast<abi::RegionKind>(region.kind) == abi::RegionKind::kIpc;
}
bool is_gpu(const abi::RegisterRegion& region) {
  return is_ipc(region) || static_cast<abi::RegionKind>(region.kind) == abi::RegionKind::kVmm;
}
Status check(const abi::RegisterRegion& region) {
  MK_RETURN_IF_ERROR(check_text(region.no_dma_buf, "register_region.no_dma_buf"));
  MK_RETURN_IF_ERROR(check_reserved(is_zero(region.reserved), "register_region"));
  const auto with_fields_of = [&](const char* kind) {
    return malformed("register_region of kind " + std::to_string(region.kind) + " with fields of " + kind);
  };
  if (!is_ipc(region) && !is_zero(region.ipc)) return with_fields_of("kind 2 (ipc)");
  if (region.keep != 0 && is_gpu(region)) return with_fields_of("host memory");
  const bool dma_buf = region.dma_buf_offset != 0 || region.no_dma_buf[0] != 0;
  return dma_buf && !is_gpu(region) ? with_fields_of("GPU memory") : Status();
}
Status check(const abi::UnregisterRegion& unregister) {
  return check_reserved(is_zero(unregister.reserved), "unregister_region");
}
Status check(const abi::SealRegion& seal) {
  return check_reserved(is_zero(seal.reserved), "seal_region");
}
Status check(const abi::MapRegion& map) {
  return check_reserved(map.reserved == 0, "map_region");
}
Status check(const abi::Exchange&) {
  return {};
}
Status check(const abi::FailGroup& fail) {
  MK_RETURN_IF_ERROR(check_text(fail.text, "fail_group.text"));
  return check_reserved(is_zero(fail.reserved), "fail_group");
}

Status check(const abi::RejectLaunch& reject) {
  return check_text(reject.text, "reject_launch.text");
}

template <typename Body>
Result<Message> decode_as(const PacketView& packet, const char* name, std::size_t fds = 0) {
  if (packet.bytes.size() != sizeof(Body)) {
    return malformed(std::string(name) + " of " + std::to_string(packet.bytes.size()) + " bytes, expected " +
                     std::to_string(sizeof(Body)));
  }
  if (packet.fd_count != fds) {
    return malformed(std::string(name) + " with " + std::to_string(packet.fd_count) + " fds, expected " +
                     std::to_string(fds));
  }
  Body body;
  std::memcpy(&body, packet.bytes.data(), sizeof(Body));
  MK_RETURN_IF_ERROR(check(body));
  return Message(body);
}

/// Host memory comes with its fd, a VMM allocation too, plain GPU memory without one; GPU memory with its
/// dma-buf behind that, when there is one.
Result<Message> decode_region(const PacketView& packet) {
  abi::RegisterRegion region{};
  if (packet.bytes.size() == sizeof(region)) std::memcpy(&region, packet.bytes.data(), sizeof(region));
  const std::size_t least = is_ipc(region) ? 0 : 1;
  const bool dma_buf = is_gpu(region) && packet.fd_count == least + 1;
  return decode_as<abi::RegisterRegion>(packet, "register_region", least + (dma_buf ? 1 : 0));
}

Status check_header(const abi::Header& header, std::size_t bytes) {
  if (header.magic != abi::kMagic) {
    return malformed("message magic is " + std::to_string(header.magic) + ", expected " +
                     std::to_string(abi::kMagic) + ": not a client of mkernel");
  }
  if (header.version != abi::kVersion) {
    return {StatusCode::kFailedPrecondition, "client speaks ABI version " + std::to_string(header.version) +
                                                 ", this daemon speaks " + std::to_string(abi::kVersion) +
                                                 ": install the same release on both sides"};
  }
  if (header.bytes != bytes) {
    return malformed("message says " + std::to_string(header.bytes) + " bytes, the packet has " +
                     std::to_string(bytes));
  }
  if (header.sequence == 0) return malformed("request with sequence 0, which is kept for events");
  return {};
}

}  // namespace

Result<abi::Header> decode_header(const PacketView& packet) {
  if (packet.truncated) {
    return malformed("packet longer than the largest message of " + std::to_string(abi::kMaxMessageBytes) +
                     " bytes");
  }
  if (packet.fds_truncated || packet.fd_count > abi::kMaxFds) {
    return malformed("packet with more than " + std::to_string(abi::kMaxFds) + " fds");
  }
  if (packet.bytes.size() < sizeof(abi::Header)) {
    return malformed("packet of " + std::to_string(packet.bytes.size()) + " bytes, a message has at least " +
                     std::to_string(sizeof(abi::Header)));
  }
  abi::Header header;
  std::memcpy(&header, packet.bytes.data(), sizeof(header));
  MK_RETURN_IF_ERROR(check_header(header, packet.bytes.size()));
  return header;
}

Result<Message> decode(const PacketView& packet) {
  const auto header = decode_header(packet);
  if (!header.ok()) return header.status();
  switch (static_cast<abi::MessageType>(header->type)) {
    case abi::MessageType::kHello: return decode_as<abi::Hello>(packet, "hello");
    case abi::MessageType::kJoinGroup: return decode_as<abi::JoinGroup>(packet, "join_group");
    case abi::MessageType::kLeaveGroup: return decode_as<abi::LeaveGroup>(packet, "leave_group");
    case abi::MessageType::kRegisterRegion: return decode_region(packet);
    case abi::MessageType::kUnregisterRegion:
      return decode_as<abi::UnregisterRegion>(packet, "unregister_region");
    case abi::MessageType::kSealRegion: return decode_as<abi::SealRegion>(packet, "seal_region");
    case abi::MessageType::kMapRegion: return decode_as<abi::MapRegion>(packet, "map_region");
    case abi::MessageType::kExchange: return decode_as<abi::Exchange>(packet, "exchange");
    case abi::MessageType::kFailGroup: return decode_as<abi::FailGroup>(packet, "fail_group");
    case abi::MessageType::kRejectLaunch: return decode_as<abi::RejectLaunch>(packet, "reject_launch");
    default: return malformed("message of unknown type " + std::to_string(header->type));
  }
}

}  // namespace mkernel::session

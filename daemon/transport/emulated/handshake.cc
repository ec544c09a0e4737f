#include "daemon/transport/emulated/handshake.h"

#include <cstring>
#include <utility>

namespace mkernel::transport::emulated {
namespace {

/// A hello may wait for its reader, less long than that.
constexpr std::chrono::seconds kClockTolerance{10};

}  // namespace

std::string describe(const Identity& identity) {
  return identity.node + " (boot " + std::to_string(identity.boot_id) + ")";
}

bool same(const Identity& a, const Identity& b) {
  return a.node == b.node && a.boot_id == b.boot_id;
}

Status send_hello(int socket, const Identity& from, const Identity& to, int fence_fd, std::uint32_t wire) {
  HelloPacket hello{.head = {PacketType::kHello, 0, 0},
                    .magic = kWireMagic,
                    .version = kWireVersion,
                    .from_boot_id = from.boot_id,
                    .to_boot_id = to.boot_id};
  hello.wire = wire;
  hello.clock = to_ticks(Clock::now());
  ipc::copy_text(hello.from_node, from.node);
  ipc::copy_text(hello.to_node, to.node);
  return ipc::send_packet(socket, std::as_bytes(std::span(&hello, 1)), std::span(&fence_fd, 1));
}

void send_refusal(int socket, const Refusal& refusal) {
  RefusePacket packet{.head = {PacketType::kRefuse, 0, 0},
                      .code = static_cast<std::uint32_t>(refusal.why.code()),
                      .final = refusal.final ? 1U : 0U};
  ipc::copy_text(packet.text, refusal.why.text());
  // The peer may be gone already, and then needs no answer.
  static_cast<void>(ipc::send_packet(socket, std::as_bytes(std::span(&packet, 1))));
}

PacketType type_of(const ipc::Packet& packet) {
  Head head{};
  if (packet.bytes >= sizeof(head)) std::memcpy(&head, packet.data, sizeof(head));
  return head.type;
}

Result<Greeting> read_hello(const ipc::Packet& packet) {
  HelloPacket hello{};
  if (type_of(packet) != PacketType::kHello || packet.bytes != sizeof(hello) || packet.truncated) {
    return Status{StatusCode::kInvalidArgument,
                  "emulated: the first packet of a connection is no hello (type " +
                      std::to_string(static_cast<int>(type_of(packet))) + ", " +
                      std::to_string(packet.bytes) + " bytes)"};
  }
  std::memcpy(&hello, packet.data, sizeof(hello));
  if (hello.magic != kWireMagic || hello.version != kWireVersion) {
    return Status{StatusCode::kFailedPrecondition,
                  "emulated: the peer speaks version " + std::to_string(hello.version) +
                      " of the link, this node " + std::to_string(kWireVersion)};
  }
  const Time now = Clock::now(), theirs = from_ticks(hello.clock);
  if (theirs < now - kClockTolerance || theirs > now + kClockTolerance) {
    const auto text = [](Time time) {
      return std::to_string(
          std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count());
    };
    return Status{StatusCode::kFailedPrecondition, "emulated: the peer's monotonic clock is at " +
                                                       text(theirs) + " s, this node's at " + text(now) +
                                                       " s: are they on one host, in one time namespace?"};
  }
  if (packet.fds.size() != 1) {
    return Status{StatusCode::kInvalidArgument,
                  "emulated: a hello with " + std::to_string(packet.fds.size()) + " fds instead of 1"};
  }
  const int fd = packet.fds.front().get();
  MK_RETURN_IF_ERROR(ipc::check_shared_memory(fd, 0, kFencePageBytes).with_context("emulated: fence page"));
  auto fence = ipc::Mapping::map(fd, 0, kFencePageBytes);
  if (!fence.ok()) return fence.status();
  return Greeting{.from = {std::string(ipc::text_of(hello.from_node)), hello.from_boot_id},
                  .to = {std::string(ipc::text_of(hello.to_node)), hello.to_boot_id},
                  .fence = std::move(fence).value(),
                  .wire = hello.wire};
}

Refusal read_refusal(const ipc::Packet& packet) {
  RefusePacket refusal{};
  if (type_of(packet) != PacketType::kRefuse || packet.bytes != sizeof(refusal)) {
    return {{StatusCode::kUnavailable, "emulated: the peer answered the hello with a packet of type " +
                                           std::to_string(static_cast<int>(type_of(packet)))},
            false};
  }
  std::memcpy(&refusal, packet.data, sizeof(refusal));
  const auto code = refusal.code == 0 ? StatusCode::kUnavailable : static_cast<StatusCode>(refusal.code);
  return {{code, std::string(ipc::text_of(refusal.text))}, refusal.final != 0};
}

}  // namespace mkernel::transport::emulated

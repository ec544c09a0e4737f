// A hostile peer of the emulated fabric: a transport with one channel each way, and the input as packets from
// the other end of its socket. What it publishes was sent, what lands lies within the target, and what it
// does not accept ends the channel or the link with a named reason.
//
// The first byte says whether the hello is right; then packets follow: two bytes of length, one that says
// which fds go with it, and the content.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "tests/support/emulated_victim.h"

namespace {

using namespace mkernel;
using namespace mkernel::transport;
using namespace mkernel::transport::emulated;

constexpr std::uint64_t kSubmitted = 3;  // puts of ours that the peer may acknowledge

void require(bool condition) {
  if (!condition) std::abort();
}

/// Checks all that the transport says: channels exist, counts stay within bounds, failures have a reason.
struct Sink final : VictimSink {
  Status place(ChannelId id, std::uint16_t region, std::uint64_t offset, std::uint32_t length,
               Target& at) override {
    require(id == 0);
    return VictimSink::place(id, region, offset, length, at);
  }
  void arrived(ChannelId id, std::uint64_t count) override {
    require(id == 0 && count > arrivals);
    VictimSink::arrived(id, count);
  }
  void completed(ChannelId id, std::uint64_t count) override {
    require(id == 1 && count <= kSubmitted);
    VictimSink::completed(id, count);
  }
  void channel_failed(ChannelId id, const Status& why) override {
    require(id <= 1 && !why.ok() && !why.text().empty());
  }
  void peer_failed(PeerId, const Status& why) override { require(!why.ok() && !why.text().empty()); }
};

struct Rig : Victim<Sink> {
  /// Everything that can happen now; nothing here waits for time to pass.
  void pump() const {
    for (int idle = 0; idle < 2;) idle = transport->poll() == 0 ? idle + 1 : 0;
    ipc::Packet answer;
    while (ipc::receive_packet(socket.get(), answer).ok()) require(answer.bytes > 0);
  }
};

/// The input, taken from its begin.
struct Input {
  std::span<const std::uint8_t> rest;
  std::uint8_t byte() {
    if (rest.empty()) return 0;
    const std::uint8_t first = rest[0];
    rest = rest.subspan(1);
    return first;
  }
  std::span<const std::uint8_t> bytes(std::size_t count) {
    const auto first = rest.first(std::min(count, rest.size()));
    rest = rest.subspan(first.size());
    return first;
  }
};

/// How many puts the packet says that it holds.
std::uint64_t puts_in(const std::vector<std::uint8_t>& packet) {
  Head head{};
  std::memcpy(&head, packet.data(), std::min(packet.size(), sizeof(head)));
  return head.type == PacketType::kPuts ? head.count : 0;
}

/// The entries of a packet of puts brought near what exists, so that the deeper checks are reached often.
void steer(std::vector<std::uint8_t>& packet) {
  PutsPacket puts{};
  std::memcpy(&puts, packet.data(), std::min(packet.size(), sizeof(puts)));
  if (puts.head.type != PacketType::kPuts) return;
  puts.head.count %= PutsPacket::kEntries + 1;
  for (std::size_t i = 0; i < puts.head.count; ++i) {
    PutEntry& put = puts.puts[i];
    put.channel = put.channel % 8 == 0 ? put.channel : kInKey;
    put.source_region %= 4;
    put.source_offset %= kRegionBytes + 2;
    put.target_offset %= kRegionBytes + 2;
    put.length %= kRegionBytes + 2;
    put.target_region %= 2;
    put.arrives = 0;
  }
  packet.resize(offsetof(PutsPacket, puts) + puts.head.count * sizeof(PutEntry));
  std::memcpy(packet.data(), &puts, packet.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input{{data, size}};
  Rig rig;
  const std::uint8_t mode = input.byte();
  if ((mode & 1) == 0) {
    rig.send_right_hello();
    rig.pump();
    require(rig.sink.connected);
    for (std::uint64_t sequence = 1; sequence <= kSubmitted; ++sequence) {
      const Put put{.channel = 1, .sequence = sequence, .source = &rig.source, .length = 64};
      require(rig.transport->submit({&put, 1}) == 1);
    }
  }
  std::uint64_t offered = 0;
  while (!input.rest.empty()) {
    const std::size_t bytes = input.byte() | std::size_t{input.byte()} << 8;
    const std::uint8_t with = input.byte();
    const auto content = input.bytes(std::min(bytes, abi::kMaxMessageBytes + 1));
    if (content.empty()) continue;
    std::vector<std::uint8_t> packet(content.begin(), content.end());
    if ((mode & 2) == 0) steer(packet);
    offered += puts_in(packet);
    const int fds[] = {rig.source.fd.get(), rig.fence.get(), rig.socket.get(), rig.source.fd.get()};
    const auto sent = std::span(fds).subspan(with & 3).first((with >> 2 & 3) % (4 - (with & 3) + 1));
    if (!ipc::send_packet(rig.socket.get(), std::as_bytes(std::span(packet)), sent).ok()) break;  // hung up
    rig.pump();
  }
  require(rig.sink.arrivals <= offered);
  return 0;
}

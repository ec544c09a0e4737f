// A hostile peer of the emulated fabric: a transport with one channel each way, and the input as packets from
// the other end of its socket. What it publishes was sent, what lands lies within the target, and what it
// does not accept ends the channel or the link with a named reason.
//
// The first byte says whether the hello is right; then packets follow: two bytes of length, one that says
// which fds go with it, and the content.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "daemon/transport/emulated/emulated.h"
#include "daemon/transport/emulated/handshake.h"
#include "daemon/transport/emulated/socket.h"

namespace {

using namespace mkernel;
using namespace mkernel::transport;
using namespace mkernel::transport::emulated;

constexpr std::uint64_t kRegionBytes = 4096;
constexpr ChannelKey kInKey = 99, kOutKey = 100;
constexpr std::uint64_t kSubmitted = 3;  // puts of ours that the peer may acknowledge

void require(bool condition) {
  if (!condition) std::abort();
}

/// A page of memory between two that must not be touched.
memory::Region guarded_region() {
  memory::Region region;
  region.kind = abi::RegionKind::kHostMemory;
  region.bytes = kRegionBytes;
  region.fd = ipc::create_shared_memory("fuzz", kRegionBytes).value();
  region.mapping = ipc::Mapping::map(region.fd.get(), 0, kRegionBytes).value();
  return region;
}

struct Sink final : TransportSink {
  Status place(ChannelId channel, std::uint16_t region, std::uint64_t offset, std::uint32_t length,
               Target& at) override {
    require(channel == 0);
    if (region != 0 || !memory::in_bounds(offset, length, kRegionBytes)) {
      return {StatusCode::kOutOfRange, "outside the target"};
    }
    at = {&target, offset};
    return {};
  }
  void arrived(ChannelId channel, std::uint64_t count) override {
    require(channel == 0 && count > arrivals);
    arrivals = count;
  }
  void completed(ChannelId channel, std::uint64_t count) override {
    require(channel == 1 && count <= kSubmitted);
    completions = count;
  }
  void channel_failed(ChannelId channel, const Status& why) override {
    require(channel <= 1 && !why.ok() && !why.text().empty());
  }
  void peer_connected(PeerId) override { connected = true; }
  void peer_failed(PeerId, const Status& why) override { require(!why.ok() && !why.text().empty()); }

  memory::Region target = guarded_region();
  std::uint64_t arrivals = 0, completions = 0;
  bool connected = false;
};

/// The transport and the other end of its socket. The peer has the smaller name: it dials.
struct Rig {
  Rig() {
    static std::uint64_t boot = 0;
    EmulatedOptions options;
    options.base.identity = {"victim-" + std::to_string(::getpid()), ++boot};
    self = options.base.identity;
    transport = make_emulated(options).value();
    transport->attach(sink);
    require(transport->connect(5, {peer, "@nowhere"}).ok());
    require(transport->open_inbound(0, 5, kInKey).ok());
    require(transport->open_outbound(1, 5, kOutKey).ok());
    socket = dial(transport->local_endpoint()).value();
  }

  /// Everything that can happen now; nothing here waits for time to pass.
  void pump() {
    for (int idle = 0; idle < 2;) idle = transport->poll() == 0 ? idle + 1 : 0;
    ipc::Packet answer;
    while (ipc::receive_packet(socket.get(), answer).ok()) require(answer.bytes > 0);
  }

  Identity self;
  Identity peer{"aggressor", 7};
  memory::Region source = guarded_region();
  Sink sink;
  std::unique_ptr<Transport> transport;
  ipc::UniqueFd fence = ipc::create_shared_memory("fence", kFencePageBytes).value();
  ipc::UniqueFd socket;
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
    require(send_hello(rig.socket.get(), rig.peer, rig.self, rig.fence.get()).ok());
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

// An emulated transport and the other end of its socket, for a peer that lies: of unit tests and of a fuzz
// target, so whatever goes wrong here is thrown.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "daemon/transport/emulated/emulated.h"
#include "daemon/transport/emulated/handshake.h"
#include "daemon/transport/emulated/socket.h"

namespace mkernel::transport::emulated {

inline constexpr std::uint64_t kRegionBytes = 4096;
inline constexpr ChannelKey kInKey = 99, kOutKey = 100;

inline memory::Region shared_region(const char* name) {
  memory::Region region;
  region.kind = abi::RegionKind::kHostMemory;
  region.bytes = kRegionBytes;
  region.fd = ipc::create_shared_memory(name, kRegionBytes).value();
  region.mapping = ipc::Mapping::map(region.fd.get(), 0, kRegionBytes).value();
  return region;
}

/// What the transport has said, and one region that puts may go to.
struct VictimSink : TransportSink {
  Status place(ChannelId, std::uint16_t region, std::uint64_t offset, std::uint32_t length,
               Target& at) override {
    if (region != 0 || !memory::in_bounds(offset, length, kRegionBytes))
      return {StatusCode::kOutOfRange, "outside the target"};
    at = {&target, offset};
    return {};
  }
  void arrived(ChannelId, std::uint64_t count) override { arrivals = count; }
  void completed(ChannelId, std::uint64_t count) override { completions = count; }
  void channel_failed(ChannelId, const Status& why) override { channel = why; }
  void peer_connected(PeerId) override { connected = true; }
  void peer_failed(PeerId, const Status& why) override { peer = why; }

  memory::Region target = shared_region("target");
  std::uint64_t arrivals = 0, completions = 0;
  bool connected = false;
  Status channel, peer;  ///< how they have failed
};

/// A transport with one inbound (0) and one outbound (1) channel. Its peer has the smaller name: it dials.
template <typename Sink = VictimSink>
struct Victim {
  Victim() {
    static std::uint64_t boot = 0;
    EmulatedOptions options;
    options.base.identity = {"victim-" + std::to_string(::getpid()), ++boot};
    self = options.base.identity;
    transport = make_emulated(options).value();
    transport->attach(sink);
    expect(transport->connect(5, {peer, "@nowhere"}));
    expect(transport->open_inbound(0, 5, kInKey));
    expect(transport->open_outbound(1, 5, kOutKey));
    socket = dial(transport->local_endpoint()).value();
  }
  void send_right_hello() const { expect(send_hello(socket.get(), peer, self, fence.get())); }

  static void expect(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.to_string());
  }

  Identity self, peer{"aggressor", 7};
  /// The source of all puts in both directions. It outlives the transport.
  memory::Region source = shared_region("source");
  Sink sink;
  std::unique_ptr<Transport> transport;
  // The peer's.
  ipc::UniqueFd fence = ipc::create_shared_memory("fence", kFencePageBytes).value();
  ipc::UniqueFd socket;
};

}  // namespace mkernel::transport::emulated

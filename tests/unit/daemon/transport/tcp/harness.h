// Two TCP transports in one process, polled in turn, and a peer made of bytes for what no honest transport
// says.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/transport/tcp/tcp.h"
#include "daemon/transport/tcp/transport.h"
#include "daemon/transport/tcp/wire.h"

namespace mkernel::transport::tcp {

inline constexpr std::uint32_t kMiB = 1 << 20;
inline constexpr PeerId kPeer = 5;  ///< what each end calls the other

/// Of any kind; what passes for GPU memory is what FakeEngines can map.
std::unique_ptr<memory::Region> make_region(std::uint64_t bytes,
                                            abi::RegionKind kind = abi::RegionKind::kHostMemory);
/// Fills with bytes that depend on the seed and the place.
void fill_random(memory::Region& region, std::uint64_t seed);

/// A node: transport, one region, record of every callback.
class End final : public TransportSink {
 public:
  /// `boot_id` decides who dials: the smaller one.
  explicit End(std::uint64_t boot_id, TcpOptions options = {}, std::uint64_t region_bytes = 1 << 20,
               abi::RegionKind kind = abi::RegionKind::kHostMemory);

  Transport& transport() { return *transport_; }
  TcpTransport& tcp() { return dynamic_cast<TcpTransport&>(*transport_); }
  memory::Region& region() { return *region_; }
  PeerAddress address() const { return {identity_, transport_->local_endpoint()}; }
  const Identity& identity() const { return identity_; }
  Put put(ChannelId channel, std::uint64_t sequence, std::uint64_t offset, std::uint32_t length) const;

  Status place(ChannelId channel, std::uint16_t region, std::uint64_t offset, std::uint32_t length,
               Target& target) override;
  void arrived(ChannelId channel, std::uint64_t count) override { arrivals[channel] = count; }
  void completed(ChannelId channel, std::uint64_t count) override { completions[channel] = count; }
  void channel_failed(ChannelId channel, const Status& why) override {
    channel_failures.emplace(channel, why);
  }
  void peer_connected(PeerId) override { ++connected; }
  void peer_failed(PeerId, const Status& why) override { peer_failure = why; }

  std::map<ChannelId, std::uint64_t> arrivals;
  std::map<ChannelId, std::uint64_t> completions;
  std::map<ChannelId, Status> channel_failures;
  int connected = 0;
  Status peer_failure;

 private:
  Identity identity_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<memory::Region> region_;
};

/// Polls the ends in turn until the condition holds; false when it does not within half a minute.
bool run(const std::vector<End*>& ends, const std::function<bool()>& condition);

void connect(End& a, End& b);

/// A peer that speaks bytes: dials a transport and says whatever a test wants, correct or not.
class RawPeer {
 public:
  /// Connects to the end's listening port.
  explicit RawPeer(End& target);

  void send(const void* data, std::size_t bytes);
  template <typename Frame>
  void say(const Frame& frame) {
    send(&frame, sizeof(frame));
  }
  /// A correct Hello of node "raw" with this boot id, to be spoilt.
  Hello hello(std::uint64_t boot_id) const;
  /// Polls the target until the frame is complete. False at end of stream or after half a minute.
  bool receive(void* data, std::size_t bytes);
  /// The target has closed the connection.
  bool closed();

 private:
  End& target_;
  ipc::UniqueFd socket_;
};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace mkernel::transport::tcp

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

#include "daemon/transport/secret/peer_secret.h"
#include "daemon/transport/tcp/handshake.h"
#include "daemon/transport/tcp/message.h"
#include "daemon/transport/tcp/tcp.h"
#include "daemon/transport/tcp/transport.h"

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
  /// Connects to `other`, whose transport gets what this one says over the peer link, as soon as it has
  /// connected too.
  void meet(End& other) { meet(other, other.address()); }
  void meet(End& other, const PeerAddress& address);
  /// Hands on what was said over the peer link. Returns the number of messages.
  std::size_t deliver();
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

  void send_to_peer(PeerId, std::span<const std::byte> message) override {
    said.emplace_back(message.begin(), message.end());
  }

  std::map<ChannelId, std::uint64_t> arrivals;
  std::map<ChannelId, std::uint64_t> completions;
  std::map<ChannelId, Status> channel_failures;
  int connected = 0;
  Status peer_failure;
  std::vector<std::vector<std::byte>> said;  ///< over the peer link, not handed on yet

 private:
  Identity identity_;
  End* other_ = nullptr;
  bool met_ = false;  ///< the transport has connected, and may be told what the peer says
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<memory::Region> region_;
};

/// Polls the ends in turn until the condition holds; false when it does not within half a minute.
bool run(const std::vector<End*>& ends, const std::function<bool()>& condition);

void connect(End& a, End& b);

/// A peer that speaks bytes: says whatever a test wants, correct or not.
class RawPeer {
 public:
  /// Connects to the end's listening port.
  explicit RawPeer(End& target);
  /// Takes over a connection that the target has dialled.
  RawPeer(End& target, ipc::UniqueFd socket) : target_(target), socket_(std::move(socket)) {}

  void send(const void* data, std::size_t bytes);
  template <typename Frame>
  void say(const Frame& frame) {
    send(&frame, sizeof(frame));
  }
  /// A correct Hello of node "raw" with this boot id, to be spoilt.
  Hello hello(std::uint64_t boot_id) const;
  /// Says Hello and answers the Challenge with whatever `prove` makes of the two. Returns the Welcome.
  Welcome greet(const Hello& hello,
                const std::function<SecretBytes(const Hello& hello, const Challenge& challenge)>& prove);
  /// The same with the proof of who knows the secret.
  Welcome greet(const Hello& hello, const PeerSecret& secret);
  /// Polls the target until the frame is complete. False at end of stream or after half a minute.
  bool receive(void* data, std::size_t bytes);
  /// The target has closed the connection.
  bool closed();

 private:
  End& target_;
  ipc::UniqueFd socket_;
};

/// A listener on loopback that is no transport.
class RawListener {
 public:
  RawListener();
  std::string endpoint() const { return endpoint_; }
  /// The next connection that the target dials.
  RawPeer accept(End& target);

 private:
  ipc::UniqueFd socket_;
  std::string endpoint_;
};

/// Agrees with the target's transport, which has connected to node "raw" with this boot id as kPeer, on a
/// secret: what the peer link does between daemons.
void agree(End& target, PeerSecret& secret);
/// For node "raw", which dials the target, or is dialled by it.
PeerSecret raw_secret(const End& target, std::uint64_t boot_id, bool dials = true);

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace mkernel::transport::tcp

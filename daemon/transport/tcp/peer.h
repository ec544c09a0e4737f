// A peer node in one of its lives: its connections, and the channels that lead to and from it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/transport/secret/peer_secret.h"
#include "daemon/transport/tcp/channel.h"
#include "daemon/transport/tcp/context.h"
#include "daemon/transport/tcp/link.h"
#include "daemon/transport/tcp/message.h"
#include "daemon/transport/tcp/socket.h"

namespace mkernel::transport::tcp {

class Peer {
 public:
  Peer(Context& context, PeerId id, const PeerAddress& address, const SocketAddress& remote);
  ~Peer();

  PeerId id() const { return id_; }
  const Identity& identity() const { return address_.identity; }
  const SocketAddress& remote() const { return remote_; }
  /// Of two ends the one with the smaller (boot id, node name) dials.
  bool dials() const { return dials_; }
  bool failed() const { return failed_; }
  const std::shared_ptr<PeerLoad>& load() const { return load_; }
  /// This end dials, and has what it needs for it.
  bool may_dial() const { return dials_ && secret_.complete(); }
  const PeerSecret& secret() const { return secret_; }
  std::uint32_t connections() const { return count_; }
  /// "node b (boot 00000000000012ab, 10.0.0.2:7600)"
  std::string describe() const;

  /// Begins to agree on a secret. Errors: the system has no random bytes.
  Status start(Clock::time_point now);
  /// What the peer's transport said over the peer link: its half of the secret. Untrusted.
  void receive(std::span<const std::byte> message, Clock::time_point now);
  /// Closes all connections for good.
  void close();
  /// Gives the peer up and reports it.
  void fail(const Status& why);

  /// Listening end: the link that a Hello (already proven) is about, its old connection closed: the fence.
  Link& fence(const Hello& hello);
  void link_up(Link& link);
  void link_down(Link& link, const Status& why);
  /// The connection that carries a channel; the same at both ends.
  Link& link_of(ChannelKey key);

  Outbound* outbound(ChannelKey key) const;
  Inbound* inbound(ChannelKey key) const;
  void add(Outbound& channel);
  void add(Inbound& channel);
  void remove(Outbound& channel);
  void remove(Inbound& channel);
  std::size_t channels() const { return outbound_.size() + inbound_.size(); }
  bool uses(const memory::Region& region) const;

  Clock::time_point deadline() const;
  void expire(Clock::time_point now);

 private:
  void use_connections(std::uint32_t count);
  void say_secret();

  Context& context_;
  const std::shared_ptr<PeerLoad> load_ = std::make_shared<PeerLoad>();
  const PeerId id_;
  const PeerAddress address_;
  const SocketAddress remote_;
  const bool dials_;
  PeerSecret secret_;
  bool reported_ = false;  ///< peer_connected
  bool whole_ = false;     ///< all connections were up, and none was lost since: what the sink knows
  bool failed_ = false;
  std::uint32_t count_ = 0;                   ///< connections in use; the dialling end's choice
  std::vector<std::unique_ptr<Link>> links_;  ///< at least count_; never shrinks, so events find their link
  std::unordered_map<ChannelKey, Outbound*> outbound_;
  std::unordered_map<ChannelKey, Inbound*> inbound_;
};

}  // namespace mkernel::transport::tcp

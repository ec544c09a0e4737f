// The dialling end of a handshake, without its socket: what to say, and whether the answers are good. The
// listening end is the acceptor's. message.h has the layouts.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/transport/secret/peer_secret.h"
#include "daemon/transport/tcp/message.h"
#include "daemon/transport/transport.h"
#include "proto/abi/status.h"

namespace mkernel::transport::tcp {

inline constexpr Protocol kProtocol{"TCP", kWireVersion};

/// Of one connection at a time. One thread.
class DialHandshake {
 public:
  /// A new connection, with a new nonce. Errors: those of draw_random().
  Status begin(const Identity& self, const Identity& peer, std::uint32_t connection,
               std::uint32_t connections);
  const Hello& hello() const { return hello_; }
  /// kUnavailable for an answer that is none, or a refusal.
  Status challenged(const Challenge& challenge);
  /// After challenged(); `secret` is complete.
  Proof proof(const PeerSecret& secret) const;
  /// kUnavailable unless whoever listens has proven that it knows the secret, and lets us in.
  Status welcomed(const PeerSecret& secret, const Welcome& welcome) const;

 private:
  Hello hello_{};
  Challenge challenge_{};
};

}  // namespace mkernel::transport::tcp

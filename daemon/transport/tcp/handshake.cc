#include "daemon/transport/tcp/handshake.h"

#include "proto/ipc/packet.h"

namespace mkernel::transport::tcp {

Status DialHandshake::begin(const Identity& self, const Identity& peer, std::uint32_t connection,
                            std::uint32_t connections) {
  hello_ = {kWireMagic, kWireVersion, self.boot_id, peer.boot_id, connection, connections, {}, {}};
  ipc::copy_text(hello_.node, self.node);
  challenge_ = {};
  return draw_random(hello_.nonce);
}

Status DialHandshake::challenged(const Challenge& challenge) {
  if (challenge.magic != kChallengeMagic) {
    return {StatusCode::kUnavailable, "whatever listens there is no mkernel TCP transport"};
  }
  if (challenge.code != 0 || challenge.version != kWireVersion) {
    return {StatusCode::kUnavailable, "whatever listens there speaks TCP wire version " +
                                          std::to_string(challenge.version) + ", this node version " +
                                          std::to_string(kWireVersion)};
  }
  challenge_ = challenge;
  return {};
}

Proof DialHandshake::proof(const PeerSecret& secret) const {
  return {secret.prove(Prover::kDialler, {bytes_of_layout(hello_), bytes_of_layout(challenge_)})};
}

Status DialHandshake::welcomed(const PeerSecret& secret, const Welcome& welcome) const {
  if (welcome.magic != kWelcomeMagic) {
    return {StatusCode::kUnavailable, "whatever listens there is no mkernel TCP transport"};
  }
  if (welcome.code != 0) {
    return {StatusCode::kUnavailable,
            "it refuses the connection: it does not know this node (yet), or is not the daemon that the "
            "peer link leads to"};
  }
  const auto transcript = {bytes_of_layout(hello_), bytes_of_layout(challenge_)};
  if (!secret.proven(Prover::kListener, transcript, welcome.mac)) {
    return {StatusCode::kUnavailable,
            "whatever listens there does not know the secret that was agreed over the peer link"};
  }
  return {};
}

}  // namespace mkernel::transport::tcp

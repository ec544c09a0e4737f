// How the group directory sees the other daemons: who is there, ordered messages to each, nothing else.
// PeerLinks is the real one; tests join several directories by a fake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/transport/transport.h"
#include "mkernel/v1/peer.pb.h"
#include "proto/abi/status.h"

namespace mkernel::cluster {

/// A peer daemon in one of its lives.
struct PeerInfo {
  transport::PeerId id = 0;
  std::string node;
  std::uint64_t boot_id = 0;
  /// Its data plane, by rail.
  std::vector<transport::PeerAddress> rails;
};

/// A code from the wire as that of a failure.
inline StatusCode failure_code(std::uint32_t code) {
  const bool known = code > 0 && code <= static_cast<std::uint32_t>(StatusCode::kDataLoss);
  return known ? static_cast<StatusCode>(code) : StatusCode::kUnknown;
}

/// Why a peer that breaks the protocol goes down.
inline Status violation(const std::string& text) {
  return {StatusCode::kInvalidArgument, "protocol violation: " + text};
}

/// Control thread only, callbacks included.
class PeerBus {
 public:
  virtual ~PeerBus() = default;

  /// Messages to one peer arrive once and in the order of the calls, or the peer goes down. Messages to a
  /// peer that is not up are dropped.
  virtual void send(transport::PeerId peer, v1::PeerMessage message) = 0;
  /// The peer broke the protocol, or its data paths are lost for good: it goes down with this reason. If it
  /// is there after all it comes up again, with a new id. PeerEvents::peer_down() comes later, not inside the
  /// call.
  virtual void drop(transport::PeerId peer, const Status& why) = 0;
  /// Configured peers that are not up, each with the reason: "10.0.0.7:7600 (connection refused)".
  virtual std::vector<std::string> unreachable() const = 0;
  /// Some peer that is up has left more than kCongestedAbove messages unacknowledged. It stays true until
  /// every peer is down to kCongestedBelow or gone; then PeerEvents::congestion_cleared() comes. Whoever
  /// turns clients' requests into messages takes no further ones meanwhile: send() still accepts all, and a
  /// peer that is far behind is given up in the end.
  virtual bool congested() const { return false; }

  static constexpr std::size_t kCongestedAbove = 4096, kCongestedBelow = 1024;
};

class PeerEvents {
 public:
  virtual ~PeerEvents() = default;
  virtual void peer_up(const PeerInfo& peer) = 0;
  /// For good: nothing comes from this id any more.
  virtual void peer_down(transport::PeerId peer, const Status& why) = 0;
  /// Only between peer_up and peer_down.
  virtual void received(transport::PeerId peer, const v1::PeerMessage& message) = 0;
  /// PeerBus::congested() was true and has become false. Never inside a call of PeerBus.
  virtual void congestion_cleared() {}
};

}  // namespace mkernel::cluster

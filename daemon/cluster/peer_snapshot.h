// A peer as mkctl shows it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/cluster/peer_clock.h"
#include "mkernel/v1/peer.pb.h"

namespace mkernel::cluster {

/// How one rail reaches a peer.
struct RailSnapshot {
  std::uint32_t rail = 0;
  std::uint64_t paths_lost_total = 0;
  bool down = false;      ///< the last path was lost, and there is no other yet
  std::string path;       ///< the last one told of; empty: the first one holds
  std::string last_loss;  ///< path and reason
  bool connected = false;
  double waiting_seconds = 0;  ///< alive, and not connected
};

/// "2 x tcp": how many rails of which kind.
inline std::string rails_text(std::size_t count, const std::string& kind) {
  return std::to_string(count) + " x " + kind;
}

/// One configured or known peer, for people.
struct PeerSnapshot {
  std::string address;  ///< as configured or resolved
  std::string node;     ///< empty until it has said hello
  std::uint64_t boot_id = 0;
  std::string version;
  std::string state;  ///< connecting, alive, warn, error, dead
  double silent_seconds = 0;
  bool configured = false;  ///< false: it dialled us
  std::uint64_t sent_total = 0, received_total = 0, unacknowledged = 0;
  std::string reason;               ///< of the last failure
  std::vector<RailSnapshot> rails;  ///< empty while nothing is known of its node
  std::string transport;            ///< rails_text() of its own; empty while it has not said so
  std::vector<v1::NicPort> ports;   ///< as it sees them
  std::optional<PeerClock::Estimate> clock;
};

}  // namespace mkernel::cluster

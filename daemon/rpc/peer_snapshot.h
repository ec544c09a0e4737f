// A peer as mkctl shows it.
#pragma once

#include <cstdint>
#include <string>

namespace mkernel::rpc {

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
  std::string reason;  ///< of the last failure
};

}  // namespace mkernel::rpc

// The emulated fabric: several daemons on one host play several nodes. Payloads never cross a wire: the
// sender passes its region's fd, and the receiver copies from there to where the put goes. What is
// emulated is the link: bandwidth, latency, drop, duplication, reorder and failure, each settable while
// traffic flows (set_link() on the sending side shapes that direction). See README.md for how a link works.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "daemon/memory/copy_engines.h"
#include "daemon/transport/transport.h"

namespace mkernel::transport {

struct EmulatedOptions {
  TransportOptions base;
  /// Folder for the listening socket; empty = an abstract name, which lives as long as the transport and no
  /// longer.
  std::string runtime_dir;
  std::uint32_t rail = 0;   ///< tells the transports of one node apart: part of the socket's name
  std::uint32_t rails = 1;  ///< wires between two nodes (at most 64): a link takes its rail's own, or another
  LinkShape shape;          ///< of every link until set_link() says otherwise
  std::uint64_t seed = 1;   ///< of the faults: the same seed and traffic give the same faults
  /// Unacknowledged for this long (latency on top) = sent again; doubles up to 16 times while nothing moves.
  std::chrono::milliseconds retransmit_timeout{20};
  /// What copies from and to GPU memory, this transport's alone; null = host memory only.
  std::shared_ptr<memory::CopyEngines> engines;
};

/// What the links of one transport did to the traffic, and what was done about it.
struct FaultCounters {
  std::uint64_t dropped = 0;               ///< sender: puts lost on purpose
  std::uint64_t duplicated = 0;            ///< sender: puts sent twice on purpose
  std::uint64_t reordered = 0;             ///< sender: puts held back behind later ones
  std::uint64_t retransmitted = 0;         ///< sender: puts sent again for want of an acknowledgement
  std::uint64_t duplicates_discarded = 0;  ///< receiver: puts that were already in place
  std::uint64_t fenced = 0;                ///< receiver: puts discarded because their sender closed a channel
  std::uint64_t connections = 0;           ///< connections made, replays included
};

class EmulatedTransport : public Transport {
 public:
  /// Same thread rule as every other call.
  virtual const FaultCounters& faults() const = 0;
};

/// Binds the listening socket. Errors: kAlreadyExists when another transport holds the address,
/// kInvalidArgument when the address is too long, kUnavailable for what the system refuses. The result is an
/// EmulatedTransport.
Result<std::unique_ptr<Transport>> make_emulated(const EmulatedOptions& options);

}  // namespace mkernel::transport

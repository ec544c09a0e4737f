// How far a peer's clock is from this node's: four times of two keepalives, compared as NTP does.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "mkernel/v1/peer.pb.h"

namespace mkernel::cluster {

/// Nanoseconds since 1970, as this machine's clock says.
std::int64_t wall_time();

/// Of one peer. Times are nanoseconds since 1970, each as the clock of the node that wrote it says. Control
/// thread only.
class PeerClock {
 public:
  /// The true difference lies within half the round trip of `offset`: the two ways may have taken unequally
  /// long, and the control threads of both daemons are part of them.
  struct Estimate {
    std::int64_t offset_ns = 0;  ///< the peer's clock is ahead by so much
    std::int64_t round_trip_ns = 0;
  };

  /// A keepalive leaves at `now`: writes that into it, and what was heard last.
  void say(v1::KeepAlive& message, std::int64_t now);
  /// One has come. What it says of times is not trusted: nonsense counts as nothing.
  void hear(const v1::KeepAlive& message, std::int64_t now);
  /// Of the last few, the one that took the shortest way; nothing before the first.
  std::optional<Estimate> estimate() const;

 private:
  std::deque<std::int64_t> said_;  ///< the latest last
  std::optional<std::int64_t> heard_sent_;
  std::int64_t heard_ = 0;
  std::deque<Estimate> samples_;
};

}  // namespace mkernel::cluster

// What each session moved lately, and since when it moves nothing: from counters that only grow.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "daemon/session/inspect.h"

namespace mkernel::session {

/// Looks at the counters of all sessions at intervals of its owner's choosing. Control thread.
class RateBook {
 public:
  using Clock = std::chrono::steady_clock;

  /// Remembers the counters; sessions that are not among `sessions` any more are forgotten.
  void look(const std::vector<SessionSnapshot>& sessions, Clock::time_point now);

  /// Sets the rates of the session to those between the last two looks, unset while there was only one, and
  /// idle_seconds to the time since a look that saw its counters change, to within an interval; a session
  /// that no look has seen yet is as idle as it is old.
  void fill(SessionSnapshot& session, Clock::time_point now) const;

 private:
  struct Entry {
    CounterSnapshot seen;            ///< at the last look
    Clock::time_point at, moved_at;  ///< of the last look, and of the last that saw a change
    std::optional<double> sent_per_second, arrived_per_second;
  };
  std::map<std::uint64_t, Entry> entries_;  ///< by session id
};

}  // namespace mkernel::session

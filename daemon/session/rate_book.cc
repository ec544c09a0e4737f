#include "daemon/session/rate_book.h"

#include <utility>

namespace mkernel::session {
namespace {

bool moved(const CounterSnapshot& before, const CounterSnapshot& now) {
  return before.requests_total != now.requests_total || before.completed_total != now.completed_total ||
         before.arrivals_total != now.arrivals_total || before.bytes_total != now.bytes_total ||
         before.arrived_bytes_total != now.arrived_bytes_total;
}

double seconds(RateBook::Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void RateBook::look(const std::vector<SessionSnapshot>& sessions, Clock::time_point now) {
  std::map<std::uint64_t, Entry> next;
  for (const SessionSnapshot& session : sessions) {
    Entry entry{session.counters, now, now, {}, {}};
    const auto old = entries_.find(session.id);
    if (old == entries_.end()) {
      const bool used = moved(CounterSnapshot(), session.counters);
      if (!used)
        entry.moved_at -=
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(session.age_seconds));
    } else if (const double elapsed = seconds(now - old->second.at); elapsed > 0) {
      const CounterSnapshot& before = old->second.seen;
      if (!moved(before, session.counters)) entry.moved_at = old->second.moved_at;
      entry.sent_per_second =
          static_cast<double>(session.counters.bytes_total - before.bytes_total) / elapsed;
      entry.arrived_per_second =
          static_cast<double>(session.counters.arrived_bytes_total - before.arrived_bytes_total) / elapsed;
    } else {
      entry = old->second;
    }
    next.emplace(session.id, std::move(entry));
  }
  entries_ = std::move(next);
}

void RateBook::fill(SessionSnapshot& session, Clock::time_point now) const {
  const auto found = entries_.find(session.id);
  const CounterSnapshot before = found == entries_.end() ? CounterSnapshot() : found->second.seen;
  if (moved(before, session.counters)) {
    session.idle_seconds = 0;
  } else {
    session.idle_seconds =
        found == entries_.end() ? session.age_seconds : seconds(now - found->second.moved_at);
  }
  if (found == entries_.end()) return;
  session.sent_per_second = found->second.sent_per_second;
  session.arrived_per_second = found->second.arrived_per_second;
}

}  // namespace mkernel::session

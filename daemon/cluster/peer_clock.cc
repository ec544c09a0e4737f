#include "daemon/cluster/peer_clock.h"

#include <algorithm>
#include <chrono>

namespace mkernel::cluster {
namespace {

constexpr std::size_t kKept = 8;
/// Differences of times below this do not overflow: the year 2116.
constexpr std::int64_t kLatest = std::int64_t{1} << 62;

bool sane(std::int64_t time) {
  return time > 0 && time < kLatest;
}

template <typename T>
void keep(std::deque<T>& list, const T& latest) {
  list.push_back(latest);
  if (list.size() > kKept) list.pop_front();
}

}  // namespace

std::int64_t wall_time() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

void PeerClock::say(v1::KeepAlive& message, std::int64_t now) {
  message.set_sent(now);
  keep(said_, now);
  if (!heard_sent_) return;
  message.set_heard_sent(*heard_sent_);
  message.set_heard(heard_);
}

void PeerClock::hear(const v1::KeepAlive& message, std::int64_t now) {
  if (!message.has_sent() || !sane(message.sent()) || !sane(now)) return;
  heard_sent_ = message.sent();
  heard_ = now;
  if (!message.has_heard_sent() || !sane(message.heard())) return;
  // Only what was really said, and not long ago.
  if (std::find(said_.begin(), said_.end(), message.heard_sent()) == said_.end()) return;
  const std::int64_t there = message.heard() - message.heard_sent();  // the way and the difference
  const std::int64_t back = now - message.sent();                     // the way without the difference
  if (there + back < 0) return samples_.clear();                      // a clock was set meanwhile
  keep(samples_, {there / 2 - back / 2, there + back});
}

std::optional<PeerClock::Estimate> PeerClock::estimate() const {
  if (samples_.empty()) return std::nullopt;
  return *std::min_element(samples_.begin(), samples_.end(), [](const Estimate& a, const Estimate& b) {
    return a.round_trip_ns < b.round_trip_ns;
  });
}

}  // namespace mkernel::cluster

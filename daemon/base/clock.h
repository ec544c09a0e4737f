// The one clock of the data plane: monotonic, never set back, unrelated to wall time.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace mkernel::base {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

/// `limit` from now; limits that would overflow end in the far future instead of the past.
inline TimePoint deadline_after(std::chrono::milliseconds limit) {
  const auto now = Clock::now();
  const auto room = std::chrono::duration_cast<std::chrono::milliseconds>(TimePoint::max() - now);
  return limit >= room ? TimePoint::max() : now + limit;
}

/// The first of two times that need not come.
inline std::optional<TimePoint> sooner(std::optional<TimePoint> one, std::optional<TimePoint> other) {
  if (!one || !other) return one ? one : other;
  return std::min(*one, *other);
}

}  // namespace mkernel::base

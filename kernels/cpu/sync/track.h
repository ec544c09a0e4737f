// Which thread of a launch this is, for its timeline.
#pragma once

#include <chrono>
#include <cstdint>

namespace mkernel::kernels {

/// Number of the calling thread among those of its launch (TraceEvent::track); each role thread sets its own.
inline std::uint32_t& current_track() {
  thread_local std::uint32_t track = 0;
  return track;
}

inline std::uint64_t trace_ns(std::chrono::steady_clock::time_point at) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count());
}

}  // namespace mkernel::kernels

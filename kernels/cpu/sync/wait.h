// The one bounded wait of the cpu executor. Every wait for another thread, rank or node goes through it, so
// nothing here waits for ever: it ends when the awaited word is there, when the group or the session failed,
// when another role of the same launch failed, or at the deadline.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include "kernels/base/wait_site.h"
#include "proto/abi/region_map.h"
#include "proto/abi/status.h"

namespace mkernel {
class Trace;
}  // namespace mkernel

namespace mkernel::kernels {

/// What every wait of one launch watches besides its own word. Null pointers are not watched.
struct WaitScope {
  const abi::SessionSegment* session = nullptr;
  const abi::GroupSegment* group = nullptr;
  const std::atomic<bool>* stop = nullptr;  ///< set by the first role of this launch that fails
  std::uint32_t rank = 0;                   ///< this rank, for the text
  std::chrono::milliseconds deadline{30000};
  Trace* trace = nullptr;  ///< told of every wait that had to wait; null: of none
};

/// Back-off of one wait: spins first, then yields, then sleeps up to 200 us at a time; watches the scope.
class BoundedWait {
 public:
  explicit BoundedWait(const WaitScope& scope) : scope_(scope) {
    if (scope.trace != nullptr) begin_ = std::chrono::steady_clock::now();
  }

  /// Pauses once. Not OK when the wait has to end: the code of the session's or group's failure, kCancelled
  /// (another role failed), kDeadlineExceeded.
  Status pause(const WaitSite& site, std::uint64_t expected, std::uint64_t seen);
  /// Once it is over: tells the scope's trace, when there is one.
  void record(const WaitSite& site) const;

 private:
  Status check(const WaitSite& site, std::uint64_t expected, std::uint64_t seen);

  const WaitScope& scope_;
  std::uint32_t rounds_ = 0;
  std::chrono::steady_clock::time_point begin_{};
};

/// Waits until `seen()` returns at least `expected`. `seen` must read with acquire what it hands on.
template <typename Seen>
Status wait_until(Seen&& seen, std::uint64_t expected, const WaitSite& site, const WaitScope& scope) {
  std::uint64_t value = seen();
  if (value >= expected) return {};
  BoundedWait wait(scope);
  do {
    MK_RETURN_IF_ERROR(wait.pause(site, expected, value));
    value = seen();
  } while (value < expected);
  wait.record(site);
  return {};
}

/// Waits until `word` (acquire) is at least `expected`: everything written before the release that brought
/// it there is visible afterwards.
inline Status wait_at_least(const std::uint64_t& word, std::uint64_t expected, const WaitSite& site,
                            const WaitScope& scope) {
  return wait_until([&word] { return load_acquire(word); }, expected, site, scope);
}

/// For timelines: the number of the calling thread among those of its launch (TraceEvent::track); each role
/// thread sets its own.
inline std::uint32_t& current_track() {
  thread_local std::uint32_t track = 0;
  return track;
}

inline std::uint64_t trace_ns(std::chrono::steady_clock::time_point at) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count());
}

}  // namespace mkernel::kernels

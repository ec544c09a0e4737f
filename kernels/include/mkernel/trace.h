// A timeline of launches: what the roles did when.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace mkernel {

/// One piece of a role's time. Between its waits a role works.
struct TraceEvent {
  enum class Kind : std::uint32_t { kRole = 0, kWait = 1 };
  Kind kind = Kind::kRole;
  std::uint32_t track = 0;     ///< who: a thread of the launch, from 0
  std::string name;            ///< the role; of a wait what it counts: "arrivals"
  std::int64_t peer = -1;      ///< of a wait: rank that has to act, -1 when it is none
  std::uint64_t begin_ns = 0;  ///< of the machine's monotonic clock: comparable on one machine only
  std::uint64_t end_ns = 0;
};

/// Takes the events of the launches that were given it (ExecutorOptions::trace), in no particular order. Any
/// thread.
class Trace {
 public:
  void add(TraceEvent event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  /// What there is so far, and forgets it.
  std::vector<TraceEvent> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<TraceEvent> events_;
};

}  // namespace mkernel

// A timeline of launches: what the roles did when.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace mkernel {

/// One piece of a role's time. Between its waits a role works; on the cuda executor every warp of a role says
/// at what.
struct TraceEvent {
  enum class Kind : std::uint32_t { kRole = 0, kWait = 1, kWork = 2 };
  Kind kind = Kind::kRole;
  std::uint32_t track = 0;     ///< who: a thread of the launch on the cpu executor, a CTA on the cuda one
  std::string name;            ///< the role; of a wait what it counts: "arrivals"; of work what: "product"
  std::int64_t peer = -1;      ///< of a wait: rank that has to act, -1 when it is none
  std::uint64_t begin_ns = 0;  ///< of the machine's monotonic clock: comparable on one machine only
  std::uint64_t end_ns = 0;
  std::int32_t warp = -1;   ///< of the CTA; -1: of the thread or the CTA as a whole
  std::int64_t index = -1;  ///< of work: of which tile, unit or chunk; of a wait on a GPU: for which
};

/// Takes the events of the launches that were given it (ExecutorOptions::trace), in no particular order. Any
/// thread.
class Trace {
 public:
  void add(TraceEvent event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  /// `events` more than there was memory for.
  void lose(std::uint64_t events) {
    const std::lock_guard lock(mutex_);
    lost_ += events;
  }
  /// What there is so far, and forgets it.
  std::vector<TraceEvent> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }
  /// How many events are missing in what there was.
  std::uint64_t lost() const {
    const std::lock_guard lock(mutex_);
    return lost_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<TraceEvent> events_;
  std::uint64_t lost_ = 0;
};

}  // namespace mkernel

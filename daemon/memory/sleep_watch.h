// Finds the session whose memory makes a thread of the daemon sleep.
//
// What the daemon maps of a client is sealed against holes (open_region.h), so no access to it waits long.
// Two cases are left: kernels before Linux 5.1, which lack the seal, and pages that are swapped out. Then a
// thread that all users share sleeps in a page fault, for as long as the client likes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <thread>

#include "daemon/memory/touching.h"
#include "proto/abi/status.h"
#include "proto/base/mutex.h"
#include "proto/ipc/fd.h"

namespace mkernel::memory {

/// Looks at the watched threads every kInterval. A thread that is found asleep while it touches memory of a
/// session adds kInterval to what this session has cost; what it has cost is forgotten at a rate of 1 /
/// kForget of the time that passes. A session that has cost kLimit is reported. A thread that waits for a
/// processor does not sleep: a busy machine ends no session. Thread-safe.
class SleepWatch {
 public:
  static constexpr std::chrono::milliseconds kInterval{20};
  static constexpr std::chrono::milliseconds kLimit{200};
  static constexpr int kForget = 20;

  /// Called on the watch's own thread, perhaps more than once for a session.
  using Found = std::function<void(std::uint64_t session, const Status& why)>;
  /// Whether the thread of this /proc/.../stat sleeps; tests have their own.
  using Asleep = std::function<bool(int stat)>;
  static bool asleep_by_stat(int stat);

  explicit SleepWatch(Found found, Asleep asleep = asleep_by_stat);
  ~SleepWatch();

  /// Begins to look, on a thread of its own.
  void start();

  /// The calling thread is watched until unwatch_this_thread(). One that cannot be (no /proc) is not.
  void watch_this_thread(const std::string& name);
  void unwatch_this_thread();

  /// One look at every thread. start() calls it in turns; so do tests that do not start it.
  void look();

 private:
  struct Watched {
    std::string name;
    const std::atomic<std::uint64_t>* touched = nullptr;
    ipc::UniqueFd stat;
  };

  void run();

  const Found found_;
  const Asleep asleep_;
  Mutex mutex_;
  ConditionVariable wake_;
  std::list<Watched> threads_ MK_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::chrono::microseconds> cost_ MK_GUARDED_BY(mutex_);  ///< by session
  bool stopping_ MK_GUARDED_BY(mutex_) = false;
  std::thread thread_;  ///< last: it uses everything above
};

}  // namespace mkernel::memory

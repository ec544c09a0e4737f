// A thread that does jobs of several owners in turn: what would take too long on a thread that others wait
// for.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "proto/base/mutex.h"

namespace mkernel::base {

/// Jobs of one owner are done in their order; among owners one job each in turn, so that whoever brings many
/// delays others by one at a time. Thread-safe.
class FairWorker {
 public:
  using Job = std::function<void()>;

  /// `name` is shown for the thread by ps and top, at most 15 bytes of it.
  explicit FairWorker(const std::string& name);
  /// Does what has been posted, then ends the thread. Not from within a job.
  ~FairWorker();

  /// Returns at once. The job runs, and dies, on the worker's thread. It must not throw.
  void post(std::uint64_t owner, Job job);

 private:
  void run();
  /// The next job in turn; nothing to do: an empty one.
  Job take() MK_REQUIRES(mutex_);

  Mutex mutex_;
  ConditionVariable wake_;
  std::map<std::uint64_t, std::deque<Job>> jobs_ MK_GUARDED_BY(mutex_);  ///< by owner; none is empty
  std::uint64_t last_ MK_GUARDED_BY(mutex_) = 0;  ///< the owner whose job was taken last
  bool stopping_ MK_GUARDED_BY(mutex_) = false;
  std::thread thread_;  ///< last: it uses everything above
};

}  // namespace mkernel::base

// The threads of one launch: one per role, as the CTAs of a kernel would be.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "proto/abi/status.h"
#include "proto/base/mutex.h"

namespace mkernel {
class Trace;
}  // namespace mkernel

namespace mkernel::kernels {

/// Runs role functions in threads. The first one that fails sets the stop flag, which every bounded wait of
/// the launch watches, so the others end as well; join() tells the first failure. Used by one thread.
class RoleGroup {
 public:
  RoleGroup() = default;
  RoleGroup(const RoleGroup&) = delete;
  RoleGroup& operator=(const RoleGroup&) = delete;
  ~RoleGroup();  ///< joins

  /// Roles that are started from now on are told to `trace` when they end; null: not.
  void trace_to(Trace* trace) { trace_ = trace; }

  /// Starts `role` in its own thread. A thread that cannot be started counts as a failure of the role. A
  /// role must not return kCancelled for a reason of its own: the code says "another role failed first".
  void start(std::string name, std::function<Status()> role);

  /// Waits for every role. OK, or the failure that came first.
  Status join();

  /// Set after the first failure; put into WaitScope::stop.
  const std::atomic<bool>& stop() const { return stop_; }

 private:
  void fail(Status status);

  Trace* trace_ = nullptr;
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  Status first_ MK_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace mkernel::kernels

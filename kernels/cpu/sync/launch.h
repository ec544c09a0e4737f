// One launch of an operation, as its roles see it, and the work that its threads take as they have time.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/cpu/sync/role_group.h"
#include "kernels/cpu/sync/wait.h"

namespace mkernel::kernels {

/// Items 0 .. all - 1, each taken by one thread, in order. One object per launch.
class WorkCounter {
 public:
  explicit WorkCounter(std::int32_t all) : all_(all) {}
  /// The next item; `all` when there are no more.
  std::int32_t next() {
    const std::int32_t item = next_.fetch_add(1, std::memory_order_relaxed);
    return item < all_ ? item : all_;
  }
  std::int32_t all() const { return all_; }

 private:
  const std::int32_t all_;
  std::atomic<std::int32_t> next_{0};
};

struct Launch {
  std::uint64_t epoch = 0;    ///< launches of the operation before this one
  std::uint64_t half_at = 0;  ///< where this launch's half of the lent workspace begins
  int compute_threads = 1;
  WaitScope scope;
  RoleGroup roles;

  /// Scope of a wait that other waits come before: when a rank is missing, the waits that need it directly
  /// (stage 0) end first and name it, and not those that wait for somebody who waits for it.
  WaitScope at_stage(int stage) const {
    WaitScope later = scope;
    later.deadline = scope.deadline * (4 + stage) / 4;
    return later;
  }
};

}  // namespace mkernel::kernels

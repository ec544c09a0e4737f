// One launch of an operation, as its roles see it.
#pragma once

#include <cstdint>

#include "kernels/cpu/sync/role_group.h"
#include "kernels/cpu/sync/wait.h"

namespace mkernel::kernels {

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

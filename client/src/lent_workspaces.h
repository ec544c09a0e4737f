// The workspaces of a group that its operations take turns with.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/memory.h"
#include "proto/abi/status.h"
#include "proto/base/mutex.h"

namespace mkernel::client {

class GroupCore;
struct BufferState;

/// Ten shapes do not take ten workspaces: launches of a group follow each other, so an operation takes one
/// that is there and large enough. A workspace lives as long as an operation uses it.
class LentWorkspaces {
 public:
  /// **Collective**, of the group that this belongs to: a workspace (kernels/base/lent_workspace.h) in
  /// `memory` whose halves hold `half_bytes`. One that every rank still has, else a new one; where it is the
  /// largest so far it is half as large again as the one before, so that growing shapes do not take one each.
  /// Errors: those of open_symmetric().
  Result<std::shared_ptr<BufferState>> take(const std::shared_ptr<GroupCore>& group, MemorySource& memory,
                                            std::uint64_t half_bytes);

 private:
  struct Entry {
    std::uint32_t number;  ///< the same on every rank, from 1
    const MemorySource* memory;
    std::weak_ptr<BufferState> buffer;
  };

  Mutex mutex_;
  std::vector<Entry> entries_ MK_GUARDED_BY(mutex_);
  std::uint32_t made_ MK_GUARDED_BY(mutex_) = 0;
  std::uint64_t largest_ MK_GUARDED_BY(mutex_) = 0;  ///< half that was ever made
};

}  // namespace mkernel::client

// What leaving a group and unregistering memory wait for: the puts that were written before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "daemon/base/work_budget.h"
#include "daemon/dataplane/channel_table.h"
#include "daemon/dataplane/session_table.h"

namespace mkernel::dataplane {

/// Waits until every slot that was in the session's rings at the time of its making has been taken, and every
/// put taken by then has completed. Puts that are written later hold up nobody. Proxy thread only.
class GroupMark {
 public:
  explicit GroupMark(const Group& group);

  /// True once all of them have completed, or the group has failed. Looks at some channels with every call,
  /// for as long as the budget lasts.
  bool passed(const Group& group, base::WorkBudget& budget);

 private:
  bool reached(const Session& session) const;
  bool note_submitted(const Group& group, base::WorkBudget& budget);
  bool all_completed(const Group& group, base::WorkBudget& budget);

  struct Waiting {
    std::size_t channel;
    std::uint64_t submitted;
  };

  std::array<std::uint64_t, abi::kRingWriters>
      position_{};  ///< how far each ring was written when this was made
  bool rings_passed_ = false;
  std::size_t noted_ = 0;  ///< channels that have been looked at since then
  std::vector<Waiting> waiting_;
};

}  // namespace mkernel::dataplane

#include "daemon/dataplane/group_mark.h"

namespace mkernel::dataplane {

GroupMark::GroupMark(const Group& group) {
  const Session& session = *group.session;
  if (session.reading) position_ = session.ring.position() + session.ring.depth();
}

bool GroupMark::passed(const Group& group, base::WorkBudget& budget) {
  if (group.failed) return true;
  const Session& session = *group.session;
  ring_passed_ = ring_passed_ || !session.reading || session.ring.position() >= position_;
  return ring_passed_ && note_submitted(group, budget) && all_completed(group, budget);
}

bool GroupMark::note_submitted(const Group& group, base::WorkBudget& budget) {
  while (noted_ < group.outbound.size()) {
    const Outbound& channel = group.outbound[noted_];
    if (channel.completed < channel.submitted) waiting_.push_back({noted_, channel.submitted});
    ++noted_;
    if (!budget.left(1)) break;
  }
  return noted_ == group.outbound.size();
}

// Counts only grow: what has completed once need not be looked at again.
bool GroupMark::all_completed(const Group& group, base::WorkBudget& budget) {
  while (!waiting_.empty()) {
    if (group.outbound[waiting_.back().channel].completed < waiting_.back().submitted) return false;
    waiting_.pop_back();
    if (!budget.left(1)) break;
  }
  return waiting_.empty();
}

}  // namespace mkernel::dataplane

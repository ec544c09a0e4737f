#include "daemon/dataplane/group_mark.h"

namespace mkernel::dataplane {

GroupMark::GroupMark(const Group& group) {
  const Session& session = *group.session;
  if (!session.reading) return;
  for (std::size_t r = 0; r < position_.size(); ++r)
    position_[r] = session.rings[r].reader.position() + session.rings[r].reader.depth();
}

bool GroupMark::passed(const Group& group, base::WorkBudget& budget) {
  if (group.failed) return true;
  const Session& session = *group.session;
  rings_passed_ = rings_passed_ || !session.reading || reached(session);
  return rings_passed_ && note_submitted(group, budget) && all_completed(group, budget);
}

bool GroupMark::reached(const Session& session) const {
  for (std::size_t r = 0; r < position_.size(); ++r)
    if (session.rings[r].reader.position() < position_[r]) return false;
  return true;
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

// Groups come and go in slices: a group has up to 1,024 ranks x 64 lanes x 2 channel ends on a rail, and
// other sessions must not wait until all are open or closed.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/work_budget.h"
#include "daemon/dataplane/channel_table.h"
#include "daemon/dataplane/session_table.h"

namespace mkernel::dataplane {

/// What the work needs of a rail. Outlives it.
struct GroupTools {
  transport::Transport& transport;
  ChannelEnds& ends;
  const RailTraits& traits;
};

/// Opens a group that is in the table and has begin_group() behind it. Proxy thread only.
class GroupOpening {
 public:
  explicit GroupOpening(const GroupTools& tools) : tools_(tools) {}

  /// Nothing while there is more to do; then how it ended. On an error what was opened stays open: close the
  /// group. Errors: those of the transport; kResourceExhausted when the daemon has no memory left; kInternal
  /// when a channel number is taken.
  std::optional<Status> advance(Group& group, base::WorkBudget& budget);

 private:
  Status open_channel(Group& group, std::size_t index);
  Status open_outbound(Group& group, Outbound& out);
  Status open_inbound(Group& group, const Outbound& out);
  static Status number_channel(Group& group, std::size_t index);

  GroupTools tools_;
  std::size_t opened_ = 0;
  std::size_t numbered_ = 0;  ///< slots name channels by number: last, when all are open
};

/// Closes channels of the group for as long as the budget lasts; true when none is open any more. From then
/// on the transport touches no memory of the group.
bool close_channels(const GroupTools& tools, Group& group, base::WorkBudget& budget);

/// Brings channels to a stop before they close: those of other sessions that share their connections then go
/// on undisturbed. A peer that does not answer in time has that effect on them, and no other.
class Quieting {
 public:
  explicit Quieting(transport::Transport& transport) : transport_(transport) {}

  /// True when `channels`, the same at every call, may be closed.
  bool advance(const std::vector<transport::ChannelId>& channels, base::WorkBudget& budget,
               base::TimePoint now);
  /// What is left to do has to wait for the peers.
  bool waits() const { return waits_; }

 private:
  transport::Transport& transport_;
  std::size_t stopped_ = 0;  ///< of the channels: told to stop
  std::size_t quiet_ = 0;    ///< and found quiet
  base::TimePoint give_up_{};
  bool waits_ = false;
};

/// Closes the channels to a rank that is gone, while the group goes on. Names them by id: the group may be
/// closed meanwhile, or lose its channels. Proxy thread only.
class Parting {
 public:
  Parting(const GroupTools& tools, std::vector<transport::ChannelId> channels)
      : tools_(tools), channels_(std::move(channels)), quieting_(tools.transport) {}

  /// True when nothing is left to do. Null: the group is gone.
  bool advance(Group* group, base::WorkBudget& budget, base::TimePoint now);
  bool waits() const { return quieting_.waits(); }

 private:
  GroupTools tools_;
  std::vector<transport::ChannelId> channels_;
  Quieting quieting_;
};

/// Closes a group that has been taken out of the table. Proxy thread only.
class GroupClosing {
 public:
  GroupClosing(const GroupTools& tools, std::unique_ptr<Group> group)
      : tools_(tools), group_(std::move(group)), quieting_(tools.transport) {}

  /// True when nothing points at the group any more and it has been destroyed.
  bool advance(base::WorkBudget& budget, base::TimePoint now);
  /// What is left to do has to wait for the peers.
  bool waits() const { return quieting_.waits(); }

 private:
  bool forget_regions(base::WorkBudget& budget);
  bool free_numbers(base::WorkBudget& budget);

  GroupTools tools_;
  std::unique_ptr<Group> group_;
  Quieting quieting_;
  std::size_t freed_ = 0;
};

}  // namespace mkernel::dataplane

// A formed group of which at least one rank lives here: who is in it, who is ready, its regions and
// exchanges. Only bookkeeping: what to send and whom to tell is decided by the GroupDirectory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cluster/member.h"

namespace mkernel::cluster {

/// How a group ended.
struct GroupFailure {
  std::int32_t culprit = -1;
  std::string node;
  Status why;
  bool lost = false;  ///< the culprit is gone, and who needs nothing more of it finishes
};

/// Control thread only.
class GroupInstance {
 public:
  /// `members` by rank, all waiting and confirmed.
  GroupInstance(std::uint64_t id, std::vector<Member> members);

  std::uint64_t id() const { return id_; }
  const std::string& name() const { return members_.front().group.name; }
  std::uint32_t world_size() const { return static_cast<std::uint32_t>(members_.size()); }
  const std::vector<Member>& members() const { return members_; }
  const Member& member(std::uint32_t rank) const { return members_[rank]; }
  std::string describe() const { return "group \"" + name() + "\""; }
  /// Peers that still have a rank in it.
  std::set<transport::PeerId> peers() const;
  /// Ranks here that have not left.
  std::vector<const Member*> locals() const;

  void set_ready(std::uint32_t rank) { ready_.insert(rank); }
  bool is_ready(std::uint32_t rank) const { return ready_.count(rank) != 0; }
  bool all_ready() const { return ready_.size() == members_.size(); }
  std::set<std::uint32_t> not_ready() const;

  using RegionKey = std::pair<std::uint32_t, std::uint32_t>;  ///< rank, index
  void set_region(std::uint32_t rank, std::uint32_t index, const abi::RegionEntry& entry);
  const std::map<RegionKey, abi::RegionEntry>& regions() const { return regions_; }

  /// The rank needs nobody any more; what it contributed stays.
  void set_left(std::uint32_t rank) { left_.insert(rank); }
  bool has_left(std::uint32_t rank) const { return left_.count(rank) != 0; }

  /// Rounds that hold every contribution are over; the next is completed() + 1.
  std::uint64_t completed() const { return completed_; }
  /// A rank may be one round ahead of the slowest contribution on the way here. Errors: kInvalidArgument for
  /// a round that is over or too far ahead, or a second contribution.
  Status contribute(std::uint32_t rank, std::uint64_t round, const session::Blob& blob);
  /// The blobs of round completed() + 1 by rank, and on to the next; nothing while some are missing.
  std::optional<std::vector<session::Blob>> take_round();
  /// Ranks that have not contributed to the round completed() + 1.
  std::set<std::uint32_t> missing() const;
  /// The lowest rank that has left and without whose contribution round completed() + 1 cannot end.
  std::optional<std::uint32_t> missing_for_ever() const;

  const std::optional<GroupFailure>& failure() const { return failure_; }
  void set_failure(GroupFailure failure) { failure_ = std::move(failure); }
  /// A group that had lost a rank fails for those too who do not need it. The cause stays.
  void harden() { failure_->lost = false; }
  /// The rank's session has ended without leaving; false when that is known.
  bool set_lost(std::uint32_t rank) { return lost_.insert(rank).second; }
  bool is_gone(std::uint32_t rank) const { return has_left(rank) || lost_.contains(rank); }

 private:
  const std::uint64_t id_;
  const std::vector<Member> members_;
  std::set<std::uint32_t> ready_, left_, lost_;
  std::map<RegionKey, abi::RegionEntry> regions_;
  std::map<std::uint64_t, std::map<std::uint32_t, session::Blob>> rounds_;
  std::uint64_t completed_ = 0;
  std::optional<GroupFailure> failure_;
};

}  // namespace mkernel::cluster

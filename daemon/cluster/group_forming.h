// How a group comes to be: join, confirm and form of the head of group_directory.h, and how a join ends that
// comes to nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/cluster/group_table.h"
#include "daemon/cluster/groups_in_use.h"
#include "daemon/cluster/instance_messages.h"

namespace mkernel::cluster {

/// The part of the GroupDirectory that forms groups. Control thread only. The other parts outlive it.
class GroupForming {
 public:
  GroupForming(GroupTable& table, GroupsInUse& groups, InstanceMessages& messages)
      : table_(table), groups_(groups), messages_(messages) {}

  /// session::GroupCoordinator::join().
  void join(const session::JoinRequest& request, session::GroupCoordinator::Formed formed);
  /// Confirms the rank of this node when no peer is left whose answer it waits for.
  void confirm(LocalRank& local);
  /// Forms the group when it has a confirmed member for every rank.
  void try_form(const GroupId& group);
  /// Takes the waiting rank of this node back, everywhere; its join fails with `why`.
  void withdraw(LocalRank& local, const Status& why);

 private:
  std::optional<Status> refuse_join(const Member& newcomer) const;
  void ask_peers(LocalRank& local);
  void refuse_formation(const std::vector<MemberId>& ids, const Status& why);
  void form(const std::vector<MemberId>& ids, std::vector<Member> members);
  void join_timed_out(const dataplane::GroupKey& key);
  Status missing_ranks(const LocalRank& local) const;

  GroupTable& table_;
  GroupsInUse& groups_;
  InstanceMessages& messages_;
};

}  // namespace mkernel::cluster

// What peers say of a formed group: a rank is ready, a region, a contribution to an exchange. Messages of
// different peers come in any order, so some come for a group that this daemon has not yet formed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "daemon/cluster/group_table.h"
#include "daemon/cluster/groups_in_use.h"

namespace mkernel::cluster {

/// The messages for formed groups: they are checked and applied, and early ones are kept until their group is
/// formed here. Control thread only. Table and groups outlive it.
class InstanceMessages {
 public:
  InstanceMessages(GroupTable& table, GroupsInUse& groups) : table_(table), groups_(groups) {}

  /// A peer that is up says something of the group `instance`. It is dropped if that breaks the protocol.
  void received(const PeerInfo& from, std::uint64_t instance, const v1::PeerMessage& message);
  /// The group has been formed here: what came early is taken now.
  void replay(std::uint64_t instance);
  /// The group will not be formed here.
  void drop(std::uint64_t instance);
  /// Nothing that this peer said early counts any more.
  void peer_down(transport::PeerId peer);

  std::size_t early_count() const { return early_count_; }

 private:
  Status apply(const PeerInfo& from, GroupInstance& instance, const v1::PeerMessage& message);

  GroupTable& table_;
  GroupsInUse& groups_;
  std::map<std::uint64_t, std::vector<std::pair<transport::PeerId, v1::PeerMessage>>> early_;
  std::size_t early_count_ = 0;
};

}  // namespace mkernel::cluster

// What one daemon knows of all ranks and groups: the peers that are up, every rank that waits or is in a
// group anywhere, what is kept for the ranks of this node, and the formed groups that these are in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/cluster/executor.h"
#include "daemon/cluster/group_instance.h"
#include "daemon/cluster/local_rank.h"
#include "daemon/cluster/member.h"
#include "daemon/cluster/peer_bus.h"

namespace mkernel::cluster {

/// The state that the parts of the GroupDirectory share, and their two ways out: messages to peers, and calls
/// that run after the current one. It decides nothing. Control thread only. Executor and bus outlive it.
class GroupTable {
 public:
  GroupTable(std::string node, std::uint64_t boot_id, Executor& executor);

  /// Once, before anything else is called.
  void attach(PeerBus& bus) { bus_ = &bus; }

  const std::string& node() const { return node_; }
  std::uint64_t boot_id() const { return boot_id_; }
  Executor& executor() { return executor_; }
  PeerBus& bus() { return *bus_; }
  const PeerBus& bus() const { return *bus_; }

  // Peers that are up.
  const std::map<transport::PeerId, PeerInfo>& peers() const { return peers_; }
  const PeerInfo* find_peer(transport::PeerId id) const;
  void add_peer(const PeerInfo& peer) { peers_[peer.id] = peer; }
  /// Removes the peer and returns it; nothing when it was not up. Its ranks stay.
  std::optional<PeerInfo> take_peer(transport::PeerId id);

  // Ranks that wait or are in a group, here and on peers. This node's come first.
  const std::map<MemberId, Member>& members() const { return members_; }
  /// The members of one group.
  const std::set<MemberId>& members_of(const GroupId& group) const;
  /// Ranks wait under the name of this group that belong to another owner.
  bool others_wait(const GroupId& group) const;
  Member& member(const MemberId& id) { return members_.at(id); }
  Member* find_member(const MemberId& id);
  void add_member(const Member& member);
  void erase_member(const MemberId& id);

  // Ranks of this node.
  const std::map<dataplane::GroupKey, std::shared_ptr<LocalRank>>& locals() const { return locals_; }
  LocalRank& add_local(const session::JoinRequest& request, session::GroupCoordinator::Formed formed);
  LocalRank* find_local(const dataplane::GroupKey& key);
  /// Those that are in the group and have not left it.
  std::vector<LocalRank*> ranks_here(const GroupInstance& instance) const;
  bool somebody_waits_here() const;
  /// Removes the rank, and with the last rank here the group that it is in. No call of later() runs for it
  /// any more.
  void forget_local(const dataplane::GroupKey& key);

  // Formed groups with ranks here.
  std::map<std::uint64_t, GroupInstance>& instances() { return instances_; }
  const std::map<std::uint64_t, GroupInstance>& instances() const { return instances_; }
  GroupInstance& add_instance(std::uint64_t id, std::vector<Member> members);
  GroupInstance* find_instance(std::uint64_t id);
  /// The healthy or failed instance of a local rank, nullptr while it waits.
  GroupInstance* instance_of_local(const dataplane::GroupKey& key);
  /// The instance was here a short time ago: a message for it is late, not early.
  bool has_ended(std::uint64_t id) const;

  // Messages, and calls to the session layer.
  void broadcast(const v1::PeerMessage& message);
  void send_to_group(const GroupInstance& instance, const v1::PeerMessage& message);
  /// Erases the member of this node and announces that to all peers.
  void announce_gone(const MemberId& id, bool left, const std::string& cause);
  /// Runs `task` after the current call, unless the local rank has been forgotten by then.
  void later(LocalRank& local, std::function<void()> task);
  /// The same once for several, with those that have not been forgotten by then, if there are any.
  void later(const std::vector<LocalRank*>& locals,
             std::function<void(const std::vector<dataplane::GroupKey>&)> task);

 private:
  const std::string node_;
  const std::uint64_t boot_id_;
  Executor& executor_;
  PeerBus* bus_ = nullptr;

  std::map<transport::PeerId, PeerInfo> peers_;
  std::map<MemberId, Member> members_;
  std::map<GroupId, std::set<MemberId>> groups_;
  std::map<dataplane::GroupKey, std::shared_ptr<LocalRank>> locals_;
  std::map<std::uint64_t, GroupInstance> instances_;
  std::deque<std::uint64_t> ended_;
};

}  // namespace mkernel::cluster

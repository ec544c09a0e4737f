// What peers say, and what their coming and going means. Everything here came over a wire: it is checked, and
// a peer that breaks the protocol is dropped, with the reason.
#pragma once

#include <string>

#include "daemon/cluster/group_forming.h"
#include "daemon/cluster/group_table.h"
#include "daemon/cluster/groups_in_use.h"
#include "daemon/cluster/instance_messages.h"

namespace mkernel::cluster {

/// The part of the GroupDirectory that hears peers: see PeerEvents. Messages about ranks are handled here,
/// those about formed groups go on to InstanceMessages. Control thread only. The other parts outlive it.
class PeerMessages {
 public:
  PeerMessages(GroupTable& table, GroupsInUse& groups, InstanceMessages& messages, GroupForming& forming)
      : table_(table), groups_(groups), messages_(messages), forming_(forming) {}

  void peer_up(const PeerInfo& peer);
  void peer_down(transport::PeerId peer, const Status& why);
  void received(transport::PeerId peer, const v1::PeerMessage& message);

 private:
  void on(const PeerInfo& from, const v1::MemberJoined& joined);
  void on(const PeerInfo& from, const v1::MemberAccepted& accepted);
  void on(const PeerInfo& from, const v1::MemberRefused& refused);
  void on(const PeerInfo& from, const v1::MemberConfirmed& confirmed);
  void on(const PeerInfo& from, const v1::MemberGone& gone);
  void on(const PeerInfo& from, const v1::GroupFailed& failed);
  /// The peer has a rank that waits for, or is in, this group.
  bool takes_part(const PeerInfo& from, const GroupId& group) const;

  GroupTable& table_;
  GroupsInUse& groups_;
  InstanceMessages& messages_;
  GroupForming& forming_;
};

}  // namespace mkernel::cluster

// Groups over daemons, fully replicated: every daemon knows every rank that waits or is in a group anywhere,
// and computes the same groups from that. There is no leader and no vote.
//
//   join     A session's join becomes a Member, which is announced to all peers. A peer accepts it unless one
//            of its own ranks excludes it (the same rank, or other sizes). Of two that cross on the way the
//            one that has waited longer stays.
//   confirm  Every peer that was up has accepted the member: from here on the rank is its own, and this is
//            announced as well.
//   form     There are confirmed members for every rank: each daemon forms the same instance by itself.
//   ready    Each rank says when its channels are open. With the last one the group is ready.
//   fail     Whoever finds out first informs everybody in the group. Every daemon informs its ranks once.
//
// Messages of one peer come in order, those of different peers in any order. What comes for an instance that
// this daemon has not yet formed is kept until it has.
//
// The parts, each of which uses only those above it:
//   GroupTable        what is known: peers, members, the ranks of this node, formed groups
//   GroupsInUse       ready, regions, exchanges, fail, and how ranks leave
//   InstanceMessages  what peers say of formed groups, and the messages that come early
//   GroupForming      join, confirm, form
//   PeerMessages      what peers say of their ranks, and peers that come and go
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "daemon/cluster/group_forming.h"
#include "daemon/cluster/group_table.h"
#include "daemon/cluster/groups_in_use.h"
#include "daemon/cluster/instance_messages.h"
#include "daemon/cluster/peer_messages.h"

namespace mkernel::cluster {

/// The groups as the session layer and the peer links see them: each call goes to the part whose job it is.
/// Control thread only. Executor, bus and events outlive it.
class GroupDirectory final : public session::GroupCoordinator, public PeerEvents {
 public:
  GroupDirectory(std::string node, std::uint64_t boot_id, Executor& executor)
      : table_(std::move(node), boot_id, executor) {}
  GroupDirectory(const GroupDirectory&) = delete;
  GroupDirectory& operator=(const GroupDirectory&) = delete;

  /// Once, before anything else is called.
  void attach(PeerBus& bus, session::GroupEvents& events) {
    table_.attach(bus);
    groups_.attach(events);
  }

  // session::GroupCoordinator
  void join(const session::JoinRequest& request, Formed formed) override {
    forming_.join(request, std::move(formed));
  }
  void ready(const dataplane::GroupKey& group, std::function<void(Status)> all_ready) override {
    groups_.ready(group, std::move(all_ready));
  }
  void announce_region(const dataplane::GroupKey& group, std::uint32_t index,
                       const abi::RegionEntry& entry) override {
    groups_.announce_region(group, index, entry);
  }
  void exchange(const dataplane::GroupKey& group, std::uint64_t round, const session::Blob& blob,
                std::chrono::milliseconds timeout, Exchanged done) override {
    groups_.exchange(group, round, blob, timeout, std::move(done));
  }
  void fail(const dataplane::GroupKey& group, std::int32_t culprit, const Status& why) override {
    groups_.fail(group, culprit, why);
  }
  void reject(const dataplane::GroupKey& group, std::uint64_t launch, const Status& why) override {
    groups_.reject(group, launch, why);
  }
  bool congested() const override { return table_.bus().congested(); }
  void leave(const dataplane::GroupKey& group) override { groups_.leave(group); }
  void session_ending(dataplane::SessionId session, const Status& why) override {
    groups_.session_ending(session, why);
  }
  void session_gone(dataplane::SessionId session, const Status& why) override {
    groups_.session_gone(session, why);
  }

  // PeerEvents
  void peer_up(const PeerInfo& peer) override { peers_.peer_up(peer); }
  void peer_down(transport::PeerId peer, const Status& why) override { peers_.peer_down(peer, why); }
  void received(transport::PeerId peer, const v1::PeerMessage& message) override {
    peers_.received(peer, message);
  }

  /// Members known, here and on peers; formed groups with ranks here; messages that came early. For tests.
  std::size_t member_count() const { return table_.members().size(); }
  std::size_t instance_count() const { return table_.instances().size(); }
  std::size_t early_count() const { return messages_.early_count(); }

 private:
  GroupTable table_;
  GroupsInUse groups_{table_};
  InstanceMessages messages_{table_, groups_};
  GroupForming forming_{table_, groups_, messages_};
  PeerMessages peers_{table_, groups_, messages_, forming_};
};

}  // namespace mkernel::cluster

// Groups over daemons, fully replicated: every daemon knows every rank that waits or is in a group anywhere,
// and computes the same groups from that. No leader, no vote.
//
//   claim    A session's join becomes a Member, told to all peers. A peer accepts it unless one of its own
//   excludes it
//            (same rank, or other sizes); of two that cross on the way the one that waited longer stays.
//   confirm  Accepted by every peer that was up: from here on the rank is its own, and all peers are told.
//   form     Confirmed members for every rank: each daemon forms the same instance by itself.
//   ready    Each rank says when its channels are open; with the last one the group is ready.
//   fail     Whoever finds out first tells everybody in the group; every daemon tells its ranks once.
//
// Messages of one peer come in order, those of different peers in any: what comes for an instance that this
// daemon has not yet formed is kept until it has.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/cluster/executor.h"
#include "daemon/cluster/group_instance.h"
#include "daemon/cluster/member.h"
#include "daemon/cluster/peer_bus.h"
#include "daemon/session/group_coordinator.h"

namespace mkernel::cluster {

/// Control thread only. Executor, bus and events outlive it.
class GroupDirectory final : public session::GroupCoordinator, public PeerEvents {
 public:
  GroupDirectory(std::string node, std::uint64_t boot_id, Executor& executor);
  ~GroupDirectory() override;

  /// Once, before anything else is called.
  void attach(PeerBus& bus, session::GroupEvents& events);

  // session::GroupCoordinator
  void join(const session::JoinRequest& request, Formed formed) override;
  void ready(const dataplane::GroupKey& group, std::function<void(Status)> all_ready) override;
  void announce_region(const dataplane::GroupKey& group, std::uint32_t index,
                       const abi::RegionEntry& entry) override;
  void exchange(const dataplane::GroupKey& group, std::uint64_t round, const session::Blob& blob,
                std::chrono::milliseconds timeout, Exchanged done) override;
  void fail(const dataplane::GroupKey& group, std::int32_t culprit, const Status& why) override;
  bool congested() const override { return bus_->congested(); }
  void leave(const dataplane::GroupKey& group) override;
  void session_gone(dataplane::SessionId session, const Status& why) override;

  // PeerEvents
  void peer_up(const PeerInfo& peer) override;
  void peer_down(transport::PeerId peer, const Status& why) override;
  void received(transport::PeerId peer, const v1::PeerMessage& message) override;

  /// Members known, here and on peers; formed groups with ranks here. For tests and metrics.
  std::size_t member_count() const { return members_.size(); }
  std::size_t instance_count() const { return instances_.size(); }
  std::size_t early_count() const { return early_count_; }

 private:
  struct Local;
  using LocalPtr = std::shared_ptr<Local>;

  // Forming (group_directory.cc)
  std::optional<Status> refuse_join(const Member& newcomer) const;
  void ask_peers(Local& local);
  void confirm(Local& local);
  void try_form(const std::string& name);
  void refuse_formation(const std::vector<MemberId>& ids, const Status& why);
  void form(const std::vector<MemberId>& ids, std::vector<Member> members);
  session::FormedGroup formed_group(const GroupInstance& instance) const;
  void join_timed_out(const dataplane::GroupKey& key);
  Status missing_ranks(const Local& local) const;
  void withdraw(Local& local, const Status& why);

  // In use (group_directory_use.cc)
  void check_all_ready(GroupInstance& instance);
  void apply_region(GroupInstance& instance, std::uint32_t rank, std::uint32_t index,
                    const abi::RegionEntry& entry);
  void advance_exchanges(GroupInstance& instance);
  void finish_exchange(Local& local, Result<std::vector<session::Blob>> result);
  void exchange_timed_out(const dataplane::GroupKey& key);
  void fail_instance(GroupInstance& instance, GroupFailure failure);
  void tell_peers_of_failure(const GroupInstance& instance);
  void rank_left(GroupInstance& instance, std::uint32_t rank);
  void forget_local(const dataplane::GroupKey& key);

  // From peers (group_directory_peers.cc)
  void on(const PeerInfo& from, const v1::MemberJoined& joined);
  void on(const PeerInfo& from, const v1::MemberAccepted& accepted);
  void on(const PeerInfo& from, const v1::MemberRefused& refused);
  void on(const PeerInfo& from, const v1::MemberConfirmed& confirmed);
  void on(const PeerInfo& from, const v1::MemberGone& gone);
  /// The peer has a rank that waits for, or is in, a group of this name.
  bool takes_part(const PeerInfo& from, const std::string& group) const;
  void on(const PeerInfo& from, const v1::GroupFailed& failed);
  void on_instance(const PeerInfo& from, std::uint64_t instance, const v1::PeerMessage& message);
  Status apply(const PeerInfo& from, GroupInstance& instance, const v1::PeerMessage& message);
  void replay_early(std::uint64_t instance);
  void drop_early(std::uint64_t instance);

  Local* find_local(const dataplane::GroupKey& key);
  Member* find_member(const MemberId& id);
  GroupInstance* find_instance(std::uint64_t id);
  /// The healthy or failed instance of a local rank, nullptr while it waits.
  GroupInstance* instance_of_local(const dataplane::GroupKey& key);
  bool somebody_waits_here() const;
  void add_member(const Member& member);
  void erase_member(const MemberId& id);
  void announce_gone(const MemberId& id, bool left, const std::string& cause);
  void broadcast(const v1::PeerMessage& message);
  void send_to_group(const GroupInstance& instance, const v1::PeerMessage& message);
  /// Runs `task` after the current call, unless the local rank has been forgotten by then.
  void later(Local& local, std::function<void()> task);

  const std::string node_;
  const std::uint64_t boot_id_;
  Executor& executor_;
  PeerBus* bus_ = nullptr;
  session::GroupEvents* events_ = nullptr;

  std::map<transport::PeerId, PeerInfo> peers_;
  std::map<MemberId, Member> members_;
  std::map<std::string, std::set<MemberId>> names_;
  std::map<dataplane::GroupKey, LocalPtr> locals_;
  std::map<std::uint64_t, GroupInstance> instances_;
  std::map<std::uint64_t, std::vector<std::pair<transport::PeerId, v1::PeerMessage>>> early_;
  std::size_t early_count_ = 0;
  std::deque<std::uint64_t>
      ended_;  ///< instances that were here, so that late messages are not taken for early ones
};

}  // namespace mkernel::cluster

// Formed groups of which ranks live here, from the moment in which they are formed until the last of these
// ranks has left: who is ready, regions, exchanges, failure, and the end.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "daemon/cluster/group_table.h"
#include "daemon/session/group_coordinator.h"

namespace mkernel::cluster {

/// The part of the GroupDirectory that serves formed groups. Control thread only. Table and events outlive
/// it.
class GroupsInUse {
 public:
  explicit GroupsInUse(GroupTable& table) : table_(table) {}

  /// Once, before anything else is called.
  void attach(session::GroupEvents& events) { events_ = &events; }

  // What ranks of this node ask for: see session::GroupCoordinator.
  void ready(const dataplane::GroupKey& group, std::function<void(Status)> all_ready);
  void announce_region(const dataplane::GroupKey& group, std::uint32_t index, const abi::RegionEntry& entry);
  void exchange(const dataplane::GroupKey& group, std::uint64_t round, const session::Blob& blob,
                std::chrono::milliseconds timeout, session::GroupCoordinator::Exchanged done);
  void fail(const dataplane::GroupKey& group, std::int32_t culprit, const Status& why);
  void reject(const dataplane::GroupKey& group, std::uint64_t launch, const Status& why);
  void leave(const dataplane::GroupKey& group);
  void session_ending(dataplane::SessionId session, const Status& why);
  void session_gone(dataplane::SessionId session, const Status& why);

  // What follows from a message of a peer as well as from a call.
  /// Answers the ranks here when every rank of the group is ready.
  void check_all_ready(GroupInstance& instance);
  void apply_region(GroupInstance& instance, std::uint32_t rank, std::uint32_t index,
                    const abi::RegionEntry& entry);
  /// Ends every round that is complete, and with an error one that cannot be completed any more.
  void advance_exchanges(GroupInstance& instance);
  /// The group will end: whoever joins under its name is not refused because of it.
  void free_names(const GroupInstance& instance);
  void rank_left(GroupInstance& instance, std::uint32_t rank);
  /// Ends the group for all its ranks. Only the first failure of a group counts, but for two things: every
  /// rank that is lost is made known, and a group that has lost a rank can fail as a whole later.
  void fail_instance(GroupInstance& instance, GroupFailure failure);
  void apply_rejection(GroupInstance& instance, std::uint32_t rank, std::uint64_t launch, const Status& why);
  /// To the ranks here.
  void report_states(const GroupInstance& instance, std::vector<session::RankReport> states);

 private:
  void end_instance(GroupInstance& instance);
  void report_failure(const GroupInstance& instance, const GroupFailure& failure);
  void tell_ranks_here(const GroupInstance& instance, const GroupFailure& failure);
  std::vector<session::RankReport> states_here(const GroupInstance& instance) const;
  std::vector<dataplane::GroupKey> keys_of(dataplane::SessionId session) const;
  void end_rank(const dataplane::GroupKey& key, const Status& why);
  void lose(GroupInstance& instance, std::uint32_t rank, const Status& why);
  void finish_exchange(LocalRank& local, const Result<session::Round>& result);
  void exchange_timed_out(const dataplane::GroupKey& key);
  void announce_failure(const GroupInstance& instance, const GroupFailure& failure);

  GroupTable& table_;
  session::GroupEvents* events_ = nullptr;
};

}  // namespace mkernel::cluster

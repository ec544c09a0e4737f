#include "daemon/cluster/groups_in_use.h"

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "daemon/base/utf8.h"

namespace mkernel::cluster {
namespace {

const Status kLeftLater(StatusCode::kUnavailable, "left the group, which had lost a rank before");

Status left_behind(const GroupInstance& instance, std::uint32_t rank) {
  return {StatusCode::kUnavailable, instance.describe() + ": " + instance.member(rank).describe() +
                                        " has left the group, exchange " +
                                        std::to_string(instance.completed() + 1) + " needs it"};
}

}  // namespace

// ---- ready

void GroupsInUse::ready(const dataplane::GroupKey& group, std::function<void(Status)> all_ready) {
  LocalRank* local = table_.find_local(group);
  GroupInstance* instance = table_.instance_of_local(group);
  if (instance == nullptr) return;
  if (instance->failure()) {
    return table_.later(
        *local, [all_ready = std::move(all_ready), why = instance->failure()->why] { all_ready(why); });
  }
  local->opened = true;
  local->all_ready = std::move(all_ready);
  for (const auto& [key, entry] : instance->regions()) {
    table_.later(*local, [this, group, rank = key.first, index = key.second, entry = entry] {
      events_->region_changed({group}, rank, index, entry);
    });
  }
  instance->set_ready(local->request.rank);
  v1::PeerMessage message;
  message.mutable_member_ready()->set_instance(instance->id());
  message.mutable_member_ready()->set_rank(local->request.rank);
  table_.send_to_group(*instance, message);
  check_all_ready(*instance);
}

void GroupsInUse::check_all_ready(GroupInstance& instance) {
  if (!instance.all_ready()) return;
  for (LocalRank* local : table_.ranks_here(instance)) {
    local->timer.reset();
    if (local->all_ready == nullptr) continue;
    table_.later(*local, [done = std::exchange(local->all_ready, nullptr)] { done(Status()); });
  }
}

// ---- regions

void GroupsInUse::announce_region(const dataplane::GroupKey& group, std::uint32_t index,
                                  const abi::RegionEntry& entry) {
  GroupInstance* instance = table_.instance_of_local(group);
  if (instance == nullptr || instance->failure()) return;
  const std::uint32_t rank = table_.find_local(group)->request.rank;
  v1::PeerMessage message;
  v1::RegionAnnounced& region = *message.mutable_region_announced();
  region.set_instance(instance->id());
  region.set_rank(rank);
  region.set_index(index);
  region.set_bytes(entry.bytes);
  region.set_kind(entry.kind);
  table_.send_to_group(*instance, message);
  apply_region(*instance, rank, index, entry);
}

void GroupsInUse::apply_region(GroupInstance& instance, std::uint32_t rank, std::uint32_t index,
                               const abi::RegionEntry& entry) {
  instance.set_region(rank, index, entry);
  std::vector<LocalRank*> open = table_.ranks_here(instance);
  std::erase_if(open, [](const LocalRank* local) { return !local->opened; });  // ready() will tell these
  table_.later(open, [this, rank, index, entry](const std::vector<dataplane::GroupKey>& ranks) {
    events_->region_changed(ranks, rank, index, entry);
  });
}

// ---- exchanges

void GroupsInUse::exchange(const dataplane::GroupKey& group, std::uint64_t round, const session::Blob& blob,
                           std::chrono::milliseconds timeout, session::GroupCoordinator::Exchanged done) {
  LocalRank* local = table_.find_local(group);
  GroupInstance* instance = table_.instance_of_local(group);
  if (instance == nullptr) return;
  const auto refuse = [&](const Status& why) {
    table_.later(*local, [done = std::move(done), why] { done(why); });
  };
  if (instance->failure()) return refuse(instance->failure()->why);
  if (const auto gone = instance->missing_for_ever()) return refuse(left_behind(*instance, *gone));
  if (local->exchanged != nullptr || round != instance->completed() + 1) {
    return refuse({StatusCode::kFailedPrecondition,
                   instance->describe() + ": exchange " + std::to_string(round) + " cannot begin, exchange " +
                       std::to_string(instance->completed() + 1) + " has not ended"});
  }
  if (const Status wrong = instance->contribute(local->request.rank, round, blob); !wrong.ok())
    return refuse(wrong);
  local->round = round;
  local->exchanged = std::move(done);
  local->exchange_timer = table_.executor().call_after(timeout, [this, group] { exchange_timed_out(group); });

  v1::PeerMessage message;
  v1::Contribution& contribution = *message.mutable_contribution();
  contribution.set_instance(instance->id());
  contribution.set_rank(local->request.rank);
  contribution.set_round(round);
  contribution.set_blob(blob.data(), blob.size());
  table_.send_to_group(*instance, message);
  advance_exchanges(*instance);
}

void GroupsInUse::advance_exchanges(GroupInstance& instance) {
  while (auto blobs = instance.take_round()) {
    // The ranks share one copy, and each of them is answered by a call of its own.
    const auto round = std::make_shared<const std::vector<session::Blob>>(std::move(*blobs));
    for (LocalRank* local : table_.ranks_here(instance)) finish_exchange(*local, session::Round(round));
  }
  const auto gone = instance.missing_for_ever();
  if (!gone) return;
  const Status why = left_behind(instance, *gone);
  for (LocalRank* local : table_.ranks_here(instance)) finish_exchange(*local, why);
}

void GroupsInUse::finish_exchange(LocalRank& local, const Result<session::Round>& result) {
  local.exchange_timer.reset();
  if (local.exchanged == nullptr) return;
  table_.later(local, [done = std::exchange(local.exchanged, nullptr), result] { done(result); });
}

void GroupsInUse::exchange_timed_out(const dataplane::GroupKey& key) {
  LocalRank* local = table_.find_local(key);
  const GroupInstance* instance = table_.instance_of_local(key);
  if (local == nullptr || instance == nullptr) return;
  const std::set<std::uint32_t> missing = instance->missing();
  std::string text = instance->describe() + ": exchange " + std::to_string(local->round) +
                     ": no contribution from " + name_ranks(missing);
  if (!missing.empty()) text += ", first " + instance->member(*missing.begin()).describe();
  finish_exchange(*local, Status(StatusCode::kDeadlineExceeded, text));
}

// ---- rejected launches

void GroupsInUse::reject(const dataplane::GroupKey& group, std::uint64_t launch, const Status& why) {
  GroupInstance* instance = table_.instance_of_local(group);
  if (instance == nullptr || instance->failure()) return;
  const std::uint32_t rank = table_.find_local(group)->request.rank;
  v1::PeerMessage message;
  v1::LaunchRejected& rejected = *message.mutable_launch_rejected();
  rejected.set_instance(instance->id());
  rejected.set_rank(rank);
  rejected.set_launch(launch);
  rejected.set_code(static_cast<std::uint32_t>(why.code()));
  rejected.set_text(base::valid_utf8(why.text()));
  table_.send_to_group(*instance, message);
  apply_rejection(*instance, rank, launch, why);
}

void GroupsInUse::apply_rejection(GroupInstance& instance, std::uint32_t rank, std::uint64_t launch,
                                  const Status& why) {
  for (LocalRank* local : table_.ranks_here(instance)) {
    if (local->request.rank == rank) continue;
    table_.later(*local, [this, key = local->key(), rank, launch, why] {
      const Status made = events_->launch_rejected(key, rank, launch, why);
      if (!made.ok()) fail(key, static_cast<std::int32_t>(rank), made);
    });
  }
}

// ---- failure

void GroupsInUse::fail(const dataplane::GroupKey& group, std::int32_t culprit, const Status& why) {
  GroupInstance* instance = table_.instance_of_local(group);
  if (instance == nullptr) return;
  const bool known = culprit >= 0 && culprit < static_cast<std::int32_t>(instance->world_size());
  const Member* member = known ? &instance->member(static_cast<std::uint32_t>(culprit)) : nullptr;
  fail_instance(*instance, {known ? culprit : -1, member == nullptr ? table_.node() : member->node,
                            member == nullptr ? why : why.with_context(member->describe())});
}

void GroupsInUse::fail_instance(GroupInstance& instance, GroupFailure failure) {
  if (failure.lost && !instance.set_lost(static_cast<std::uint32_t>(failure.culprit))) return;
  if (!instance.failure()) {
    instance.set_failure(std::move(failure));
    announce_failure(instance, *instance.failure());
    return end_instance(instance);
  }
  if (!instance.failure()->lost) return;
  if (!failure.lost) {
    instance.harden();
    announce_failure(instance, *instance.failure());
    return report_failure(instance, *instance.failure());
  }
  // One more is gone: its own node tells the others. What all were doing is known.
  if (instance.member(static_cast<std::uint32_t>(failure.culprit)).local())
    announce_failure(instance, failure);
  tell_ranks_here(instance, failure);
}

void GroupsInUse::end_instance(GroupInstance& instance) {
  const GroupFailure& ended = *instance.failure();
  free_names(instance);
  report_failure(instance, ended);
  for (LocalRank* local : table_.ranks_here(instance)) {
    table_.announce_gone({kThisNode, local->key()}, false, ended.why.text());
    local->timer.reset();
    finish_exchange(*local, ended.why);
    if (local->all_ready != nullptr) {
      table_.later(*local, [done = std::exchange(local->all_ready, nullptr), why = ended.why] { done(why); });
    }
  }
}

void GroupsInUse::free_names(const GroupInstance& instance) {
  for (const Member& member : instance.members()) {
    if (Member* known = table_.find_member(member.id)) known->failed = true;
  }
}

/// To the ranks here: first what each of them was doing, as long as none of them goes on.
void GroupsInUse::report_failure(const GroupInstance& instance, const GroupFailure& failure) {
  report_states(instance, states_here(instance));
  tell_ranks_here(instance, failure);
}

void GroupsInUse::tell_ranks_here(const GroupInstance& instance, const GroupFailure& failure) {
  for (LocalRank* local : table_.ranks_here(instance)) {
    table_.later(*local, [this, key = local->key(), failure] {
      if (failure.lost) {
        events_->rank_gone(key, static_cast<std::uint32_t>(failure.culprit), failure.node, failure.why);
      } else {
        events_->group_failed(key, failure.culprit, failure.node, failure.why);
      }
    });
  }
}

std::vector<session::RankReport> GroupsInUse::states_here(const GroupInstance& instance) const {
  std::vector<session::RankReport> states;
  for (const LocalRank* local : table_.ranks_here(instance))
    states.push_back({local->request.rank, events_->state_of(local->key())});
  return states;
}

void GroupsInUse::report_states(const GroupInstance& instance, std::vector<session::RankReport> states) {
  if (states.empty()) return;
  const auto shared = std::make_shared<const std::vector<session::RankReport>>(std::move(states));
  for (LocalRank* local : table_.ranks_here(instance))
    table_.later(*local, [this, key = local->key(), shared] { events_->states_known(key, *shared); });
}

// To all of the group, not only by the one who found out: who hears of a failure from us has then heard of it
// before anything else that we say, a new join of the same rank for example.
void GroupsInUse::announce_failure(const GroupInstance& instance, const GroupFailure& failure) {
  const bool first = &failure == &*instance.failure();
  const std::vector<session::RankReport> states =
      first ? states_here(instance) : std::vector<session::RankReport>();
  for (const transport::PeerId peer : instance.peers()) {
    v1::PeerMessage message;
    v1::GroupFailed& failed = *message.mutable_group_failed();
    failed.set_instance(instance.id());
    failed.set_culprit(failure.culprit);
    failed.set_node(failure.node);
    failed.set_code(static_cast<std::uint32_t>(failure.why.code()));
    failed.set_text(base::valid_utf8(failure.why.text()));
    failed.set_lost(failure.lost);
    for (const session::RankReport& report : states) {
      v1::RankState& state = *failed.add_states();
      state.set_rank(report.rank);
      state.set_phase(report.state.phase);
      state.set_launches(report.state.launches);
      state.set_what(base::valid_utf8(report.state.what));
    }
    for (const Member& member : instance.members()) {
      if (member.id.peer != peer) continue;
      v1::MemberRef& ref = *failed.add_members();
      ref.set_session(member.id.key.session);
      ref.set_handle(member.id.key.handle);
    }
    table_.bus().send(peer, message);
  }
}

// ---- the way out

void GroupsInUse::leave(const dataplane::GroupKey& group) {
  LocalRank* local = table_.find_local(group);
  if (local == nullptr) return;
  GroupInstance* instance = table_.instance_of_local(group);
  if (instance != nullptr && !instance->failure()) {
    table_.announce_gone({kThisNode, group}, true, "");
    const std::uint32_t rank = local->request.rank;
    rank_left(*instance, rank);
  } else {
    if (instance != nullptr && instance->failure()->lost) lose(*instance, local->request.rank, kLeftLater);
    if (table_.find_member({kThisNode, group}) != nullptr)
      table_.announce_gone({kThisNode, group}, false, "gave up waiting");
  }
  table_.forget_local(group);
}

void GroupsInUse::rank_left(GroupInstance& instance, std::uint32_t rank) {
  const Member& member = instance.member(rank);
  if (!instance.is_ready(rank)) {
    return fail_instance(
        instance, {static_cast<std::int32_t>(rank),
                   member.node,
                   {StatusCode::kUnavailable,
                    instance.describe() + ": " + member.describe() + " left before the group was ready"}});
  }
  instance.set_left(rank);
  for (LocalRank* local : table_.ranks_here(instance)) {
    if (local->request.rank == rank) continue;
    table_.later(*local, [this, key = local->key(), rank, node = member.node] {
      events_->rank_gone(key, rank, node, Status());
    });
  }
  advance_exchanges(instance);
}

/// The rank is gone, by its own will or not. Before all were ready nobody can have what it needs of it.
void GroupsInUse::lose(GroupInstance& instance, std::uint32_t rank, const Status& why) {
  const Member& member = instance.member(rank);
  fail_instance(instance, {static_cast<std::int32_t>(rank), member.node, why.with_context(member.describe()),
                           instance.all_ready()});
}

std::vector<dataplane::GroupKey> GroupsInUse::keys_of(dataplane::SessionId session) const {
  std::vector<dataplane::GroupKey> keys;
  const auto& locals = table_.locals();
  for (auto at = locals.lower_bound({session, 0}); at != locals.end() && at->first.session == session; ++at) {
    keys.push_back(at->first);
  }
  return keys;
}

/// Only of a group in use something can be on its way that others need.
void GroupsInUse::session_ending(dataplane::SessionId session, const Status& why) {
  for (const dataplane::GroupKey& key : keys_of(session)) {
    const GroupInstance* instance = table_.instance_of_local(key);
    const bool in_use =
        instance != nullptr && instance->all_ready() && (!instance->failure() || instance->failure()->lost);
    if (!in_use) {
      end_rank(key, why);
      continue;
    }
    free_names(*instance);
    v1::PeerMessage message;
    v1::MemberGone& ending = *message.mutable_member_gone();
    ending.set_session(key.session);
    ending.set_handle(key.handle);
    ending.set_ending(true);
    table_.broadcast(message);
  }
}

void GroupsInUse::session_gone(dataplane::SessionId session, const Status& why) {
  for (const dataplane::GroupKey& key : keys_of(session)) end_rank(key, why);
}

void GroupsInUse::end_rank(const dataplane::GroupKey& key, const Status& why) {
  GroupInstance* instance = table_.instance_of_local(key);
  if (instance != nullptr) lose(*instance, table_.find_local(key)->request.rank, why);
  if (table_.find_member({kThisNode, key}) != nullptr)
    table_.announce_gone({kThisNode, key}, false, why.text());
  table_.forget_local(key);
}

}  // namespace mkernel::cluster

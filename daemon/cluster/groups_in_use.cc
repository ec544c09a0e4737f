#include "daemon/cluster/groups_in_use.h"

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "daemon/base/utf8.h"

namespace mkernel::cluster {
namespace {

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
  if (instance.failure()) return;
  instance.set_failure(std::move(failure));
  const GroupFailure& ended = *instance.failure();
  announce_failure(instance);
  for (const Member& member : instance.members()) {
    if (Member* known = table_.find_member(member.id)) known->failed = true;
  }
  for (LocalRank* local : table_.ranks_here(instance)) {
    table_.announce_gone({kThisNode, local->key()}, false, ended.why.text());
    local->timer.reset();
    table_.later(*local, [this, key = local->key(), ended] {
      events_->group_failed(key, ended.culprit, ended.node, ended.why);
    });
    finish_exchange(*local, ended.why);
    if (local->all_ready != nullptr) {
      table_.later(*local, [done = std::exchange(local->all_ready, nullptr), why = ended.why] { done(why); });
    }
  }
}

// To all of the group, not only by the one who found out: who hears of a failure from us has then heard of it
// before anything else that we say, a new join of the same rank for example.
void GroupsInUse::announce_failure(const GroupInstance& instance) {
  const GroupFailure& failure = *instance.failure();
  for (const transport::PeerId peer : instance.peers()) {
    v1::PeerMessage message;
    v1::GroupFailed& failed = *message.mutable_group_failed();
    failed.set_instance(instance.id());
    failed.set_culprit(failure.culprit);
    failed.set_node(failure.node);
    failed.set_code(static_cast<std::uint32_t>(failure.why.code()));
    failed.set_text(base::valid_utf8(failure.why.text()));
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
  } else if (table_.find_member({kThisNode, group}) != nullptr) {
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
  advance_exchanges(instance);
}

void GroupsInUse::session_gone(dataplane::SessionId session, const Status& why) {
  std::vector<dataplane::GroupKey> keys;
  const auto& locals = table_.locals();
  for (auto at = locals.lower_bound({session, 0}); at != locals.end() && at->first.session == session; ++at) {
    keys.push_back(at->first);
  }
  for (const dataplane::GroupKey& key : keys) {
    GroupInstance* instance = table_.instance_of_local(key);
    if (instance != nullptr) fail(key, static_cast<std::int32_t>(table_.find_local(key)->request.rank), why);
    if (table_.find_member({kThisNode, key}) != nullptr)
      table_.announce_gone({kThisNode, key}, false, why.text());
    table_.forget_local(key);
  }
}

}  // namespace mkernel::cluster

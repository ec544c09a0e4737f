#include "daemon/cluster/group_forming.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace mkernel::cluster {
namespace {

/// Waiting members of a group as rank -> member; of one rank the first.
using ByRank = std::map<std::uint32_t, const Member*>;

std::string list(const std::vector<std::string>& items) {
  constexpr std::size_t kShown = 4;
  std::string text;
  for (std::size_t i = 0; i < items.size() && i < kShown; ++i) text += (i == 0 ? "" : ", ") + items[i];
  if (items.size() > kShown) text += " and " + std::to_string(items.size() - kShown) + " more";
  return text;
}

/// "node a has rank 0, node b has ranks 2, 3".
std::string name_present(const ByRank& present) {
  std::map<std::string, std::set<std::uint32_t>> nodes;
  for (const auto& [rank, member] : present) nodes[member->node].insert(rank);
  std::vector<std::string> items;
  for (const auto& [node, ranks] : nodes) items.push_back("node " + node + " has " + name_ranks(ranks));
  return list(items);
}

session::FormedGroup formed_group(const GroupInstance& instance) {
  session::FormedGroup group;
  group.instance = instance.id();
  for (const Member& member : instance.members()) {
    dataplane::PeerRank port;
    port.local = member.local();
    port.rails = member.rails;
    if (port.local) {
      port.local_key = member.id.key;
    } else {
      port.peer = member.id.peer;
    }
    group.members.push_back({member.node, port});
  }
  return group;
}

}  // namespace

// ---- join

void GroupForming::join(const session::JoinRequest& request, session::GroupCoordinator::Formed formed) {
  const dataplane::GroupKey key = request.key;
  LocalRank& local = table_.add_local(request, std::move(formed));
  const Member member = member_of(request, table_.node(), table_.boot_id(), table_.executor().unix_ms());
  if (const auto refusal = refuse_join(member)) return withdraw(local, *refusal);

  table_.add_member(member);
  local.timer = table_.executor().call_after(request.timeout, [this, key] { join_timed_out(key); });
  ask_peers(local);
}

std::optional<Status> GroupForming::refuse_join(const Member& newcomer) const {
  for (const MemberId& id : table_.members_of(newcomer.group)) {
    if (auto refusal = conflict(table_.member(id), newcomer)) return refusal;
  }
  return std::nullopt;
}

void GroupForming::ask_peers(LocalRank& local) {
  v1::PeerMessage message;
  *message.mutable_member_joined() = joined_message(table_.member({kThisNode, local.key()}));
  table_.broadcast(message);
  for (const auto& [peer, info] : table_.peers()) local.asked.insert(peer);
  confirm(local);
}

// ---- confirm

void GroupForming::confirm(LocalRank& local) {
  Member* member = table_.find_member({kThisNode, local.key()});
  if (member == nullptr || member->confirmed || !local.asked.empty()) return;
  member->confirmed = true;
  v1::PeerMessage message;
  message.mutable_member_confirmed()->set_session(local.key().session);
  message.mutable_member_confirmed()->set_handle(local.key().handle);
  table_.broadcast(message);
  try_form(local.group);
}

// ---- form

void GroupForming::try_form(const GroupId& group) {
  ByRank ranks;
  for (const MemberId& id : table_.members_of(group)) {
    const Member& member = table_.member(id);
    if (member.waiting() && member.confirmed) ranks.emplace(member.rank, &member);
  }
  if (ranks.empty() || ranks.size() != ranks.begin()->second->world_size) return;
  // Confirmed members agree with each other. Should a peer's not do so, they never form, and time out.
  std::vector<MemberId> ids;
  std::vector<Member> members;
  for (const auto& [rank, member] : ranks) {
    const Member& first = *ranks.begin()->second;
    if (member->world_size != first.world_size || member->lanes != first.lanes ||
        member->region_capacity != first.region_capacity) {
      return;
    }
    ids.push_back(member->id);
    members.push_back(*member);
  }
  if (const Status wrong = check_users(members); !wrong.ok()) return refuse_formation(ids, wrong);
  if (const Status unequal = check_balance(members); !unequal.ok()) return refuse_formation(ids, unequal);
  form(ids, std::move(members));
}

void GroupForming::refuse_formation(const std::vector<MemberId>& ids, const Status& why) {
  // Every daemon comes to the same refusal and withdraws its own.
  for (const MemberId& id : ids) table_.member(id).failed = true;
  for (const MemberId& id : ids) {
    LocalRank* local = id.peer == kThisNode ? table_.find_local(id.key) : nullptr;
    if (local != nullptr) withdraw(*local, why);
  }
}

void GroupForming::form(const std::vector<MemberId>& ids, std::vector<Member> members) {
  const std::uint64_t id = instance_of(members);
  bool here = false;
  for (const MemberId& member : ids) {
    table_.member(member).instance = id;
    here = here || member.peer == kThisNode;
  }
  for (Member& member : members) member.instance = id;
  if (!here) return messages_.drop(id);

  const GroupInstance& instance = table_.add_instance(id, std::move(members));
  for (LocalRank* local : table_.ranks_here(instance)) {
    local->instance = id;
    table_.later(*local, [this, key = local->key(), formed = std::exchange(local->formed, nullptr)] {
      const GroupInstance& whole = *table_.instance_of_local(key);
      if (!whole.failure()) return formed(formed_group(whole));
      const Status why = whole.failure()->why;  // to the session layer this group has never been
      table_.forget_local(key);
      formed(why);
    });
  }
  messages_.replay(id);
}

// ---- not to form

void GroupForming::withdraw(LocalRank& local, const Status& why) {
  const dataplane::GroupKey key = local.key();
  if (table_.find_member({kThisNode, key}) != nullptr)
    table_.announce_gone({kThisNode, key}, false, why.text());
  local.timer.reset();
  if (local.formed == nullptr) return;
  table_.later(local, [this, key, why, formed = std::exchange(local.formed, nullptr)] {
    table_.forget_local(key);
    formed(why);
  });
}

void GroupForming::join_timed_out(const dataplane::GroupKey& key) {
  LocalRank* local = table_.find_local(key);
  if (local == nullptr) return;
  const std::string head = "group \"" + local->request.name + "\": after " +
                           std::to_string(local->request.timeout.count()) + " ms ";
  if (local->waiting()) return withdraw(*local, missing_ranks(*local).with_context(head));

  GroupInstance* instance = table_.instance_of_local(key);
  if (instance == nullptr || instance->all_ready() || instance->failure()) return;
  const std::set<std::uint32_t> late = instance->not_ready();
  const Member& first = instance->member(*late.begin());
  groups_.fail_instance(
      *instance, {static_cast<std::int32_t>(first.rank),
                  first.node,
                  {StatusCode::kDeadlineExceeded,
                   head + "the channels of " + name_ranks(late) + " are not open; " + first.describe()}});
}

Status GroupForming::missing_ranks(const LocalRank& local) const {
  ByRank present;
  std::set<std::uint32_t> unconfirmed;
  for (const MemberId& id : table_.members_of(local.group)) {
    const Member& member = table_.member(id);
    if (!member.waiting()) continue;
    present.emplace(member.rank, &member);
    if (!member.confirmed) unconfirmed.insert(member.rank);
  }
  std::set<std::uint32_t> missing;
  for (std::uint32_t rank = 0; rank < local.request.world_size; ++rank) {
    if (present.count(rank) == 0) missing.insert(rank);
  }
  // Who waited in vain beside this rank and timed out a moment earlier is not the one to look for.
  const auto gave_up = [&](std::uint32_t rank) { return local.gave_up.count(rank) != 0; };
  std::set<std::uint32_t> gone;
  std::copy_if(missing.begin(), missing.end(), std::inserter(gone, gone.end()), gave_up);
  std::erase_if(missing, gave_up);
  std::string text;
  if (!missing.empty())
    text = name_ranks(missing) + " of " + std::to_string(local.request.world_size) + " missing; ";
  text += name_present(present);
  if (local.others_waited) {
    // Another user's group that happens to have this name, or, more often, a secret or uid that differs.
    text +=
        "; ranks of another owner waited under the same name: ranks of one group have one join secret, or "
        "one uid";
  }
  if (!gone.empty()) text += "; came and went: " + name_ranks(gone);
  if (!unconfirmed.empty()) text += "; not yet accepted by every node: " + name_ranks(unconfirmed);
  std::vector<std::string> silent;
  for (const transport::PeerId peer : local.asked) silent.push_back(table_.peers().at(peer).node);
  if (!silent.empty()) text += "; no answer from: " + list(silent);
  if (const auto unreachable = table_.bus().unreachable(); !unreachable.empty()) {
    text += "; peers not reachable: " + list(unreachable);
  }
  return {StatusCode::kDeadlineExceeded, text};
}

}  // namespace mkernel::cluster

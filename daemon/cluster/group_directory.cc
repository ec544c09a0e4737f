// Forming: claim, confirm, form. See the head of group_directory.h.
#include "daemon/cluster/group_directory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "daemon/base/utf8.h"
#include "daemon/cluster/local_rank.h"

namespace mkernel::cluster {
namespace {

/// Waiting members of a name as rank -> member; of one rank the first.
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

}  // namespace

GroupDirectory::GroupDirectory(std::string node, std::uint64_t boot_id, Executor& executor)
    : node_(std::move(node)), boot_id_(boot_id), executor_(executor) {}

GroupDirectory::~GroupDirectory() = default;

void GroupDirectory::attach(PeerBus& bus, session::GroupEvents& events) {
  bus_ = &bus;
  events_ = &events;
}

// ---- claim

void GroupDirectory::join(const session::JoinRequest& request, Formed formed) {
  const dataplane::GroupKey key = request.key;
  const auto local = std::make_shared<Local>();
  local->request = request;
  local->formed = std::move(formed);
  locals_[key] = local;
  const Member member = member_of(request, node_, boot_id_, executor_.unix_ms());
  if (const auto refusal = refuse_join(member)) return withdraw(*local, *refusal);

  add_member(member);
  local->timer = executor_.call_after(request.timeout, [this, key] { join_timed_out(key); });
  ask_peers(*local);
}

std::optional<Status> GroupDirectory::refuse_join(const Member& newcomer) const {
  const auto name = names_.find(newcomer.group);
  if (name == names_.end()) return std::nullopt;
  for (const MemberId& id : name->second) {
    if (auto refusal = conflict(members_.at(id), newcomer)) return refusal;
  }
  return std::nullopt;
}

void GroupDirectory::ask_peers(Local& local) {
  v1::PeerMessage message;
  *message.mutable_member_joined() = joined_message(members_.at({kThisNode, local.key()}));
  broadcast(message);
  for (const auto& [peer, info] : peers_) local.asked.insert(peer);
  confirm(local);
}

// ---- confirm

void GroupDirectory::confirm(Local& local) {
  Member* member = find_member({kThisNode, local.key()});
  if (member == nullptr || member->confirmed || !local.asked.empty()) return;
  member->confirmed = true;
  v1::PeerMessage message;
  message.mutable_member_confirmed()->set_session(local.key().session);
  message.mutable_member_confirmed()->set_handle(local.key().handle);
  broadcast(message);
  try_form(local.request.name);
}

// ---- form

void GroupDirectory::try_form(const std::string& name) {
  const auto known = names_.find(name);
  if (known == names_.end()) return;
  ByRank ranks;
  for (const MemberId& id : known->second) {
    const Member& member = members_.at(id);
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
  if (const Status foreign = check_owner(members); !foreign.ok()) return refuse_formation(ids, foreign);
  if (const Status unequal = check_balance(members); !unequal.ok()) return refuse_formation(ids, unequal);
  form(ids, std::move(members));
}

void GroupDirectory::refuse_formation(const std::vector<MemberId>& ids, const Status& why) {
  // Every daemon comes to the same refusal and withdraws its own.
  for (const MemberId& id : ids) members_.at(id).failed = true;
  for (const MemberId& id : ids) {
    Local* local = id.peer == kThisNode ? find_local(id.key) : nullptr;
    if (local != nullptr) withdraw(*local, why);
  }
}

void GroupDirectory::form(const std::vector<MemberId>& ids, std::vector<Member> members) {
  const std::uint64_t id = instance_of(members);
  bool here = false;
  for (const MemberId& member : ids) {
    members_.at(member).instance = id;
    here = here || member.peer == kThisNode;
  }
  for (Member& member : members) member.instance = id;
  if (!here) return drop_early(id);

  GroupInstance& instance = instances_.try_emplace(id, id, std::move(members)).first->second;
  for (const Member* member : instance.locals()) {
    Local& local = *locals_.at(member->id.key);
    local.instance = id;
    later(local, [this, key = local.key(), formed = std::exchange(local.formed, nullptr)] {
      const GroupInstance& whole = *instance_of_local(key);
      if (!whole.failure()) return formed(formed_group(whole));
      const Status why = whole.failure()->why;  // to the session layer this group has never been
      forget_local(key);
      formed(why);
    });
  }
  replay_early(id);
}

session::FormedGroup GroupDirectory::formed_group(const GroupInstance& instance) const {
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

// ---- not to form

void GroupDirectory::withdraw(Local& local, const Status& why) {
  const dataplane::GroupKey key = local.key();
  if (find_member({kThisNode, key}) != nullptr) announce_gone({kThisNode, key}, false, why.text());
  local.timer.reset();
  if (local.formed == nullptr) return;
  later(local, [this, key, why, formed = std::exchange(local.formed, nullptr)] {
    locals_.erase(key);
    formed(why);
  });
}

void GroupDirectory::join_timed_out(const dataplane::GroupKey& key) {
  Local* local = find_local(key);
  if (local == nullptr) return;
  const std::string head = "group \"" + local->request.name + "\": after " +
                           std::to_string(local->request.timeout.count()) + " ms ";
  if (local->waiting()) return withdraw(*local, missing_ranks(*local).with_context(head));

  GroupInstance* instance = instance_of_local(key);
  if (instance == nullptr || instance->all_ready() || instance->failure()) return;
  const std::set<std::uint32_t> late = instance->not_ready();
  const Member& first = instance->member(*late.begin());
  fail_instance(*instance, {static_cast<std::int32_t>(first.rank),
                            first.node,
                            {StatusCode::kDeadlineExceeded, head + "the channels of " + name_ranks(late) +
                                                                " are not open; " + first.describe()}});
}

Status GroupDirectory::missing_ranks(const Local& local) const {
  ByRank present;
  std::set<std::uint32_t> unconfirmed;
  for (const MemberId& id : names_.at(local.request.name)) {
    const Member& member = members_.at(id);
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
  if (!gone.empty()) text += "; came and went: " + name_ranks(gone);
  if (!unconfirmed.empty()) text += "; not yet accepted by every node: " + name_ranks(unconfirmed);
  std::vector<std::string> silent;
  for (const transport::PeerId peer : local.asked) silent.push_back(peers_.at(peer).node);
  if (!silent.empty()) text += "; no answer from: " + list(silent);
  if (const auto unreachable = bus_->unreachable(); !unreachable.empty()) {
    text += "; peers not reachable: " + list(unreachable);
  }
  return {StatusCode::kDeadlineExceeded, text};
}

// ---- small helpers

GroupDirectory::Local* GroupDirectory::find_local(const dataplane::GroupKey& key) {
  const auto local = locals_.find(key);
  return local == locals_.end() ? nullptr : local->second.get();
}

Member* GroupDirectory::find_member(const MemberId& id) {
  const auto member = members_.find(id);
  return member == members_.end() ? nullptr : &member->second;
}

GroupInstance* GroupDirectory::find_instance(std::uint64_t id) {
  const auto instance = instances_.find(id);
  return instance == instances_.end() ? nullptr : &instance->second;
}

GroupInstance* GroupDirectory::instance_of_local(const dataplane::GroupKey& key) {
  const Local* local = find_local(key);
  return local == nullptr ? nullptr : find_instance(local->instance);
}

bool GroupDirectory::somebody_waits_here() const {
  for (const auto& [key, local] : locals_) {
    if (local->waiting()) return true;
  }
  return false;
}

void GroupDirectory::add_member(const Member& member) {
  members_[member.id] = member;
  names_[member.group].insert(member.id);
  for (const auto& [key, local] : locals_) {
    if (local->request.name == member.group) local->gave_up.erase(member.rank);
  }
}

void GroupDirectory::erase_member(const MemberId& id) {
  const auto member = members_.find(id);
  if (member == members_.end()) return;
  for (const auto& [key, local] : locals_) {
    if (local->waiting() && local->request.name == member->second.group)
      local->gave_up.insert(member->second.rank);
  }
  const auto name = names_.find(member->second.group);
  name->second.erase(id);
  if (name->second.empty()) names_.erase(name);
  members_.erase(member);
}

void GroupDirectory::announce_gone(const MemberId& id, bool left, const std::string& cause) {
  erase_member(id);
  v1::PeerMessage message;
  v1::MemberGone& gone = *message.mutable_member_gone();
  gone.set_session(id.key.session);
  gone.set_handle(id.key.handle);
  gone.set_left(left);
  gone.set_cause(base::valid_utf8(cause));
  broadcast(message);
}

void GroupDirectory::broadcast(const v1::PeerMessage& message) {
  for (const auto& [peer, info] : peers_) bus_->send(peer, message);
}

void GroupDirectory::send_to_group(const GroupInstance& instance, const v1::PeerMessage& message) {
  for (const transport::PeerId peer : instance.peers()) bus_->send(peer, message);
}

void GroupDirectory::later(Local& local, std::function<void()> task) {
  executor_.post([weak = std::weak_ptr(locals_.at(local.key())), task = std::move(task)] {
    if (const LocalPtr alive = weak.lock()) task();
  });
}

}  // namespace mkernel::cluster

// What peers say, and what their coming and going means. Everything here came over a wire: it is checked, and
// a peer that breaks the protocol is dropped, with the reason.
#include <algorithm>
#include <utility>

#include "daemon/base/printable.h"
#include "daemon/base/utf8.h"
#include "daemon/cluster/local_rank.h"

namespace mkernel::cluster {
namespace {

constexpr std::size_t kMaxMembers = std::size_t{1} << 20;
constexpr std::size_t kMaxEarly = std::size_t{1} << 16;

template <typename Message>
MemberId id_of(const PeerInfo& from, const Message& message) {
  return {from.id, {message.session(), message.handle()}};
}

using base::one_line;

/// A code from the wire as that of a failure.
StatusCode failure_code(std::uint32_t code) {
  const bool known = code > 0 && code <= static_cast<std::uint32_t>(StatusCode::kDataLoss);
  return known ? static_cast<StatusCode>(code) : StatusCode::kUnknown;
}

}  // namespace

// ---- coming and going

void GroupDirectory::peer_up(const PeerInfo& peer) {
  peers_[peer.id] = peer;
  for (const auto& [id, member] : members_) {
    if (!member.local()) break;  // this node's come first
    v1::PeerMessage message;
    *message.mutable_member_joined() = joined_message(member);
    bus_->send(peer.id, message);
    Local* local = find_local(id.key);
    if (local != nullptr && !member.confirmed) local->asked.insert(peer.id);
  }
}

void GroupDirectory::peer_down(transport::PeerId peer, const Status& why) {
  const auto gone = peers_.extract(peer);
  if (gone.empty()) return;
  const std::string& node = gone.mapped().node;
  for (auto& [id, instance] : instances_) {
    std::set<std::uint32_t> ranks;
    for (const Member& member : instance.members()) {
      if (member.id.peer == peer && !instance.has_left(member.rank)) ranks.insert(member.rank);
    }
    if (ranks.empty()) continue;
    const Status cause(StatusCode::kUnavailable, instance.describe() + ": node " + node_ + " lost " +
                                                     name_ranks(ranks) + " on node " + node + ": " +
                                                     why.text());
    fail_instance(instance, {static_cast<std::int32_t>(*ranks.begin()), node, cause});
  }
  std::vector<MemberId> theirs;
  for (const auto& [id, member] : members_) {
    if (id.peer == peer) theirs.push_back(id);
  }
  for (const MemberId& id : theirs) erase_member(id);
  for (auto& [id, messages] : early_) {
    early_count_ -= std::erase_if(messages, [peer](const auto& entry) { return entry.first == peer; });
  }
  std::erase_if(early_, [](const auto& entry) { return entry.second.empty(); });
  for (const auto& [key, local] : locals_) {
    if (local->asked.erase(peer) != 0) confirm(*local);
  }
}

void GroupDirectory::received(transport::PeerId peer, const v1::PeerMessage& message) {
  const auto known = peers_.find(peer);
  if (known == peers_.end()) return;
  const PeerInfo& from = known->second;
  switch (message.body_case()) {
    case v1::PeerMessage::kMemberJoined: return on(from, message.member_joined());
    case v1::PeerMessage::kMemberAccepted: return on(from, message.member_accepted());
    case v1::PeerMessage::kMemberRefused: return on(from, message.member_refused());
    case v1::PeerMessage::kMemberConfirmed: return on(from, message.member_confirmed());
    case v1::PeerMessage::kMemberGone: return on(from, message.member_gone());
    case v1::PeerMessage::kGroupFailed: return on(from, message.group_failed());
    case v1::PeerMessage::kMemberReady: return on_instance(from, message.member_ready().instance(), message);
    case v1::PeerMessage::kRegionAnnounced:
      return on_instance(from, message.region_announced().instance(), message);
    case v1::PeerMessage::kContribution: return on_instance(from, message.contribution().instance(), message);
    default: bus_->drop(peer, violation("message of unknown kind " + std::to_string(message.body_case())));
  }
}

// ---- members

void GroupDirectory::on(const PeerInfo& from, const v1::MemberJoined& joined) {
  const Result<Member> checked = member_of(joined, from.id, from.node, from.boot_id);
  if (!checked.ok()) return bus_->drop(from.id, violation(checked.status().text()));
  const Member& member = checked.value();
  if (find_member(member.id) != nullptr || members_.size() >= kMaxMembers) {
    return bus_->drop(
        from.id, violation("member_joined: " + member.describe() + " is known already, or one too many"));
  }
  add_member(member);

  v1::PeerMessage answer;
  const std::set<MemberId> rivals = names_.at(member.group);
  for (const MemberId& id : rivals) {
    if (id.peer != kThisNode) continue;  // for its own node to decide
    const Member mine = members_.at(id);
    const auto refusal = conflict(mine, member);
    if (!refusal) continue;
    if (outranks(mine, member)) {
      v1::MemberRefused& refused = *answer.mutable_member_refused();
      refused.set_session(joined.session());
      refused.set_handle(joined.handle());
      refused.set_code(static_cast<std::uint32_t>(refusal->code()));
      refused.set_text(base::valid_utf8(refusal->text()));
      return bus_->send(from.id, answer);
    }
    if (Local* local = find_local(id.key)) withdraw(*local, *conflict(member, mine));
  }
  if (member.confirmed) return try_form(member.group);
  answer.mutable_member_accepted()->set_session(joined.session());
  answer.mutable_member_accepted()->set_handle(joined.handle());
  bus_->send(from.id, answer);
}

void GroupDirectory::on(const PeerInfo& from, const v1::MemberAccepted& accepted) {
  Local* local = find_local({accepted.session(), accepted.handle()});
  if (local != nullptr && local->asked.erase(from.id) != 0) confirm(*local);
}

void GroupDirectory::on(const PeerInfo& from, const v1::MemberRefused& refused) {
  Local* local = find_local({refused.session(), refused.handle()});
  if (local == nullptr || !local->waiting()) return;
  // Whoever refuses a claim has one of its own, and has told it before.
  if (!takes_part(from, local->request.name)) {
    return bus_->drop(from.id, violation("member_refused for group \"" + local->request.name +
                                         "\", in which it has no rank"));
  }
  withdraw(*local, {failure_code(refused.code()), one_line(refused.text())});
}

bool GroupDirectory::takes_part(const PeerInfo& from, const std::string& group) const {
  const auto known = names_.find(group);
  return known != names_.end() && std::any_of(known->second.begin(), known->second.end(),
                                              [&](const MemberId& id) { return id.peer == from.id; });
}

void GroupDirectory::on(const PeerInfo& from, const v1::MemberConfirmed& confirmed) {
  Member* member = find_member(id_of(from, confirmed));
  if (member == nullptr) return bus_->drop(from.id, violation("member_confirmed: no such member"));
  member->confirmed = true;
  try_form(std::string(member->group));
}

void GroupDirectory::on(const PeerInfo& from, const v1::MemberGone& gone) {
  const MemberId id = id_of(from, gone);
  const Member* known = find_member(id);
  if (known == nullptr) return;
  const Member member = *known;
  erase_member(id);
  GroupInstance* instance = find_instance(member.instance);
  if (instance == nullptr || instance->failure()) return;
  if (gone.left()) return rank_left(*instance, member.rank);
  // Its node withdrew it before it knew that the group had formed.
  const Status why(StatusCode::kUnavailable,
                   instance->describe() + ": " + member.describe() + " gave up: " + one_line(gone.cause()));
  fail_instance(*instance, {static_cast<std::int32_t>(member.rank), member.node, why});
}

void GroupDirectory::on(const PeerInfo& from, const v1::GroupFailed& failed) {
  const Status why(failure_code(failed.code()), one_line(failed.text()));
  if (GroupInstance* instance = find_instance(failed.instance())) {
    const auto& members = instance->members();
    if (std::none_of(members.begin(), members.end(),
                     [&](const Member& member) { return member.id.peer == from.id; })) {
      return bus_->drop(from.id,
                        violation("group_failed for " + instance->describe() + ", in which it has no rank"));
    }
    const bool known =
        failed.culprit() >= 0 && failed.culprit() < static_cast<std::int32_t>(instance->world_size());
    return fail_instance(*instance, {known ? failed.culprit() : -1, one_line(failed.node()), why});
  }
  // It failed before this node had formed it: the ranks that wait here were part of it.
  drop_early(failed.instance());
  for (const v1::MemberRef& ref : failed.members()) {
    Local* local = find_local({ref.session(), ref.handle()});
    if (local != nullptr && local->waiting() && takes_part(from, local->request.name)) withdraw(*local, why);
  }
}

// ---- what concerns a formed group

void GroupDirectory::on_instance(const PeerInfo& from, std::uint64_t id, const v1::PeerMessage& message) {
  if (GroupInstance* instance = find_instance(id)) {
    if (instance->failure()) return;
    const Status applied = apply(from, *instance, message);
    if (!applied.ok()) bus_->drop(from.id, applied);
    return;
  }
  if (!somebody_waits_here()) {
    early_.clear();
    early_count_ = 0;
    return;
  }
  if (std::find(ended_.begin(), ended_.end(), id) != ended_.end()) return;
  if (early_count_ >= kMaxEarly) {
    return bus_->drop(from.id, violation("too many messages for groups that are not formed"));
  }
  early_[id].emplace_back(from.id, message);
  ++early_count_;
}

Status GroupDirectory::apply(const PeerInfo& from, GroupInstance& instance, const v1::PeerMessage& message) {
  const auto owns = [&](std::uint32_t rank) {
    return rank < instance.world_size() && instance.member(rank).id.peer == from.id &&
           !instance.has_left(rank);
  };
  if (message.has_member_ready()) {
    const std::uint32_t rank = message.member_ready().rank();
    if (!owns(rank)) return violation("member_ready for rank " + std::to_string(rank));
    instance.set_ready(rank);
    check_all_ready(instance);
    return {};
  }
  if (message.has_region_announced()) {
    const v1::RegionAnnounced& region = message.region_announced();
    if (!owns(region.rank()) || region.index() >= instance.member(region.rank()).region_capacity) {
      return violation("region_announced for rank " + std::to_string(region.rank()) + ", index " +
                       std::to_string(region.index()));
    }
    apply_region(instance, region.rank(), region.index(), {region.bytes(), region.kind(), 0});
    return {};
  }
  const v1::Contribution& contribution = message.contribution();
  session::Blob blob;
  if (!owns(contribution.rank()) || contribution.blob().size() != blob.size()) {
    return violation("contribution of " + std::to_string(contribution.blob().size()) + " bytes for rank " +
                     std::to_string(contribution.rank()));
  }
  std::transform(contribution.blob().begin(), contribution.blob().end(), blob.begin(),
                 [](char c) { return static_cast<std::byte>(c); });
  const Status taken = instance.contribute(contribution.rank(), contribution.round(), blob);
  if (!taken.ok()) return violation(taken.text());
  advance_exchanges(instance);
  return {};
}

void GroupDirectory::replay_early(std::uint64_t instance) {
  const auto messages = early_.extract(instance);
  if (messages.empty()) return;
  early_count_ -= messages.mapped().size();
  for (const auto& [peer, message] : messages.mapped()) {
    if (peers_.count(peer) != 0) on_instance(peers_.at(peer), instance, message);
  }
}

void GroupDirectory::drop_early(std::uint64_t instance) {
  const auto messages = early_.extract(instance);
  if (!messages.empty()) early_count_ -= messages.mapped().size();
}

}  // namespace mkernel::cluster

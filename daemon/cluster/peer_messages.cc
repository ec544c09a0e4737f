#include "daemon/cluster/peer_messages.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "daemon/base/printable.h"
#include "daemon/base/utf8.h"
#include "proto/ipc/packet.h"

namespace mkernel::cluster {
namespace {

constexpr std::size_t kMaxMembers = std::size_t{1} << 20;

template <typename Message>
MemberId id_of(const PeerInfo& from, const Message& message) {
  return {from.id, {message.session(), message.handle()}};
}

using base::one_line;

/// What a peer says of its own ranks.
std::vector<session::RankReport> states_of(const GroupInstance& instance, const PeerInfo& from,
                                           const v1::GroupFailed& failed) {
  std::vector<session::RankReport> states;
  for (const v1::RankState& said : failed.states()) {
    const bool owns = said.rank() < instance.world_size() && instance.member(said.rank()).id.peer == from.id;
    if (!owns || states.size() >= instance.world_size()) continue;
    session::RankReport& report = states.emplace_back();
    report.rank = said.rank();
    report.state.phase = said.phase();
    report.state.launches = said.launches();
    ipc::copy_text(report.state.what, one_line(said.what()));
  }
  return states;
}

}  // namespace

// ---- coming and going

void PeerMessages::peer_up(const PeerInfo& peer) {
  table_.add_peer(peer);
  for (const auto& [id, member] : table_.members()) {
    if (!member.local()) break;  // this node's come first
    v1::PeerMessage message;
    *message.mutable_member_joined() = joined_message(member);
    table_.bus().send(peer.id, message);
    LocalRank* local = table_.find_local(id.key);
    if (local != nullptr && !member.confirmed) local->asked.insert(peer.id);
  }
}

void PeerMessages::peer_down(transport::PeerId peer, const Status& why) {
  const auto gone = table_.take_peer(peer);
  if (!gone) return;
  for (auto& [id, instance] : table_.instances()) {
    std::set<std::uint32_t> ranks;
    for (const Member& member : instance.members()) {
      if (member.id.peer == peer && !instance.is_gone(member.rank)) ranks.insert(member.rank);
    }
    if (ranks.empty()) continue;
    const Status cause(StatusCode::kUnavailable, instance.describe() + ": node " + table_.node() + " lost " +
                                                     name_ranks(ranks) + " on node " + gone->node + ": " +
                                                     why.text());
    std::vector<session::RankReport> unknown;
    for (const std::uint32_t rank : ranks)
      unknown.push_back({rank, {.phase = static_cast<std::uint32_t>(abi::RankPhase::kUnreachable)}});
    groups_.report_states(instance, unknown);
    groups_.fail_instance(instance, {static_cast<std::int32_t>(*ranks.begin()), gone->node, cause});
  }
  std::vector<MemberId> theirs;
  for (const auto& [id, member] : table_.members()) {
    if (id.peer == peer) theirs.push_back(id);
  }
  for (const MemberId& id : theirs) table_.erase_member(id);
  messages_.peer_down(peer);
  for (const auto& [key, local] : table_.locals()) {
    if (local->asked.erase(peer) != 0) forming_.confirm(*local);
  }
}

void PeerMessages::received(transport::PeerId peer, const v1::PeerMessage& message) {
  const PeerInfo* known = table_.find_peer(peer);
  if (known == nullptr) return;
  const PeerInfo& from = *known;
  switch (message.body_case()) {
    case v1::PeerMessage::kMemberJoined: return on(from, message.member_joined());
    case v1::PeerMessage::kMemberAccepted: return on(from, message.member_accepted());
    case v1::PeerMessage::kMemberRefused: return on(from, message.member_refused());
    case v1::PeerMessage::kMemberConfirmed: return on(from, message.member_confirmed());
    case v1::PeerMessage::kMemberGone: return on(from, message.member_gone());
    case v1::PeerMessage::kGroupFailed: return on(from, message.group_failed());
    case v1::PeerMessage::kMemberReady:
      return messages_.received(from, message.member_ready().instance(), message);
    case v1::PeerMessage::kRegionAnnounced:
      return messages_.received(from, message.region_announced().instance(), message);
    case v1::PeerMessage::kContribution:
      return messages_.received(from, message.contribution().instance(), message);
    case v1::PeerMessage::kLaunchRejected:
      return messages_.received(from, message.launch_rejected().instance(), message);
    default:
      table_.bus().drop(peer, violation("message of unknown kind " + std::to_string(message.body_case())));
  }
}

// ---- members

void PeerMessages::on(const PeerInfo& from, const v1::MemberJoined& joined) {
  const Result<Member> checked = member_of(joined, from.id, from.node, from.boot_id);
  if (!checked.ok()) return table_.bus().drop(from.id, violation(checked.status().text()));
  const Member& member = checked.value();
  if (table_.find_member(member.id) != nullptr || table_.members().size() >= kMaxMembers) {
    return table_.bus().drop(
        from.id, violation("member_joined: " + member.describe() + " is known already, or one too many"));
  }
  table_.add_member(member);

  v1::PeerMessage answer;
  const std::set<MemberId> rivals = table_.members_of(member.group);
  for (const MemberId& id : rivals) {
    if (id.peer != kThisNode) continue;  // for its own node to decide
    const Member mine = table_.member(id);
    const auto refusal = conflict(mine, member);
    if (!refusal) continue;
    if (outranks(mine, member)) {
      v1::MemberRefused& refused = *answer.mutable_member_refused();
      refused.set_session(joined.session());
      refused.set_handle(joined.handle());
      refused.set_code(static_cast<std::uint32_t>(refusal->code()));
      refused.set_text(base::valid_utf8(refusal->text()));
      return table_.bus().send(from.id, answer);
    }
    if (LocalRank* local = table_.find_local(id.key)) forming_.withdraw(*local, *conflict(member, mine));
  }
  if (member.confirmed) return forming_.try_form(member.group);
  answer.mutable_member_accepted()->set_session(joined.session());
  answer.mutable_member_accepted()->set_handle(joined.handle());
  table_.bus().send(from.id, answer);
}

void PeerMessages::on(const PeerInfo& from, const v1::MemberAccepted& accepted) {
  LocalRank* local = table_.find_local({accepted.session(), accepted.handle()});
  if (local != nullptr && local->asked.erase(from.id) != 0) forming_.confirm(*local);
}

void PeerMessages::on(const PeerInfo& from, const v1::MemberRefused& refused) {
  LocalRank* local = table_.find_local({refused.session(), refused.handle()});
  if (local == nullptr || !local->waiting()) return;
  // Whoever refuses a rank has one of its own, and has announced it before.
  if (!takes_part(from, local->group)) {
    return table_.bus().drop(from.id, violation("member_refused for group \"" + local->request.name +
                                                "\", in which it has no rank"));
  }
  forming_.withdraw(*local, {failure_code(refused.code()), one_line(refused.text())});
}

bool PeerMessages::takes_part(const PeerInfo& from, const GroupId& group) const {
  const std::set<MemberId>& known = table_.members_of(group);
  return std::any_of(known.begin(), known.end(), [&](const MemberId& id) { return id.peer == from.id; });
}

void PeerMessages::on(const PeerInfo& from, const v1::MemberConfirmed& confirmed) {
  Member* member = table_.find_member(id_of(from, confirmed));
  if (member == nullptr) return table_.bus().drop(from.id, violation("member_confirmed: no such member"));
  member->confirmed = true;
  forming_.try_form(GroupId(member->group));
}

void PeerMessages::on(const PeerInfo& from, const v1::MemberGone& gone) {
  const MemberId id = id_of(from, gone);
  Member* known = table_.find_member(id);
  if (known == nullptr) return;
  if (gone.ending()) {
    known->failed = true;
    if (const GroupInstance* instance = table_.find_instance(known->instance)) groups_.free_names(*instance);
    return;
  }
  const Member member = *known;
  table_.erase_member(id);
  GroupInstance* instance = table_.find_instance(member.instance);
  if (instance == nullptr || instance->failure()) return;
  if (gone.left()) return groups_.rank_left(*instance, member.rank);
  // Its node withdrew it before it knew that the group had formed.
  const Status why(StatusCode::kUnavailable,
                   instance->describe() + ": " + member.describe() + " gave up: " + one_line(gone.cause()));
  groups_.fail_instance(*instance, {static_cast<std::int32_t>(member.rank), member.node, why});
}

void PeerMessages::on(const PeerInfo& from, const v1::GroupFailed& failed) {
  const Status why(failure_code(failed.code()), one_line(failed.text()));
  if (GroupInstance* instance = table_.find_instance(failed.instance())) {
    const auto& members = instance->members();
    if (std::none_of(members.begin(), members.end(),
                     [&](const Member& member) { return member.id.peer == from.id; })) {
      return table_.bus().drop(
          from.id, violation("group_failed for " + instance->describe() + ", in which it has no rank"));
    }
    const bool known =
        failed.culprit() >= 0 && failed.culprit() < static_cast<std::int32_t>(instance->world_size());
    groups_.report_states(*instance, states_of(*instance, from, failed));
    return groups_.fail_instance(
        *instance, {known ? failed.culprit() : -1, one_line(failed.node()), why, known && failed.lost()});
  }
  // It failed before this node had formed it: the ranks that wait here were part of it.
  messages_.drop(failed.instance());
  for (const v1::MemberRef& ref : failed.members()) {
    LocalRank* local = table_.find_local({ref.session(), ref.handle()});
    if (local != nullptr && local->waiting() && takes_part(from, local->group))
      forming_.withdraw(*local, why);
  }
}

}  // namespace mkernel::cluster

#include "daemon/cluster/group_table.h"

#include <algorithm>
#include <utility>

#include "daemon/base/utf8.h"

namespace mkernel::cluster {
namespace {

constexpr std::size_t kEndedKept = 1024;

}  // namespace

GroupTable::GroupTable(std::string node, std::uint64_t boot_id, Executor& executor)
    : node_(std::move(node)), boot_id_(boot_id), executor_(executor) {}

// ---- peers

const PeerInfo* GroupTable::find_peer(transport::PeerId id) const {
  const auto peer = peers_.find(id);
  return peer == peers_.end() ? nullptr : &peer->second;
}

std::optional<PeerInfo> GroupTable::take_peer(transport::PeerId id) {
  auto peer = peers_.extract(id);
  if (peer.empty()) return std::nullopt;
  return std::move(peer.mapped());
}

// ---- members

const std::set<MemberId>& GroupTable::members_of(const GroupId& group) const {
  static const std::set<MemberId> none;
  const auto found = groups_.find(group);
  return found == groups_.end() ? none : found->second;
}

bool GroupTable::others_wait(const GroupId& group) const {
  const auto waits = [this](const MemberId& id) { return members_.at(id).waiting(); };
  for (auto at = groups_.lower_bound({group.name, ""}); at != groups_.end() && at->first.name == group.name;
       ++at) {
    if (at->first != group && std::any_of(at->second.begin(), at->second.end(), waits)) return true;
  }
  return false;
}

Member* GroupTable::find_member(const MemberId& id) {
  const auto member = members_.find(id);
  return member == members_.end() ? nullptr : &member->second;
}

void GroupTable::add_member(const Member& member) {
  members_[member.id] = member;
  groups_[member.group].insert(member.id);
  for (const auto& [key, local] : locals_) {
    if (local->group.name != member.group.name) continue;
    if (local->group == member.group) {
      local->gave_up.erase(member.rank);
    } else if (member.waiting()) {
      local->others_waited = true;
    }
  }
}

void GroupTable::erase_member(const MemberId& id) {
  const auto member = members_.find(id);
  if (member == members_.end()) return;
  for (const auto& [key, local] : locals_) {
    if (local->waiting() && local->group == member->second.group) local->gave_up.insert(member->second.rank);
  }
  const auto group = groups_.find(member->second.group);
  group->second.erase(id);
  if (group->second.empty()) groups_.erase(group);
  members_.erase(member);
}

// ---- ranks of this node

LocalRank& GroupTable::add_local(const session::JoinRequest& request,
                                 session::GroupCoordinator::Formed formed) {
  const auto local = std::make_shared<LocalRank>();
  local->request = request;
  local->group = group_id(request.name, request.uid, request.secret_hash);
  local->others_waited = others_wait(local->group);
  local->formed = std::move(formed);
  locals_[request.key] = local;
  return *local;
}

LocalRank* GroupTable::find_local(const dataplane::GroupKey& key) {
  const auto local = locals_.find(key);
  return local == locals_.end() ? nullptr : local->second.get();
}

std::vector<LocalRank*> GroupTable::ranks_here(const GroupInstance& instance) const {
  std::vector<LocalRank*> ranks;
  for (const Member* member : instance.locals()) ranks.push_back(locals_.at(member->id.key).get());
  return ranks;
}

bool GroupTable::somebody_waits_here() const {
  return std::any_of(locals_.begin(), locals_.end(),
                     [](const auto& entry) { return entry.second->waiting(); });
}

void GroupTable::forget_local(const dataplane::GroupKey& key) {
  const auto local = locals_.find(key);
  if (local == locals_.end()) return;
  const std::uint64_t id = local->second->instance;
  const std::uint32_t rank = local->second->request.rank;
  locals_.erase(local);
  GroupInstance* instance = find_instance(id);
  if (instance == nullptr) return;
  instance->set_left(rank);
  if (!instance->locals().empty()) return;
  instances_.erase(id);
  ended_.push_back(id);
  if (ended_.size() > kEndedKept) ended_.pop_front();
}

// ---- formed groups

GroupInstance& GroupTable::add_instance(std::uint64_t id, std::vector<Member> members) {
  return instances_.try_emplace(id, id, std::move(members)).first->second;
}

GroupInstance* GroupTable::find_instance(std::uint64_t id) {
  const auto instance = instances_.find(id);
  return instance == instances_.end() ? nullptr : &instance->second;
}

GroupInstance* GroupTable::instance_of_local(const dataplane::GroupKey& key) {
  const LocalRank* local = find_local(key);
  return local == nullptr ? nullptr : find_instance(local->instance);
}

bool GroupTable::has_ended(std::uint64_t id) const {
  return std::find(ended_.begin(), ended_.end(), id) != ended_.end();
}

// ---- messages and calls

void GroupTable::broadcast(const v1::PeerMessage& message) {
  for (const auto& [peer, info] : peers_) bus_->send(peer, message);
}

void GroupTable::send_to_group(const GroupInstance& instance, const v1::PeerMessage& message) {
  for (const transport::PeerId peer : instance.peers()) bus_->send(peer, message);
}

void GroupTable::announce_gone(const MemberId& id, bool left, const std::string& cause) {
  erase_member(id);
  v1::PeerMessage message;
  v1::MemberGone& gone = *message.mutable_member_gone();
  gone.set_session(id.key.session);
  gone.set_handle(id.key.handle);
  gone.set_left(left);
  gone.set_cause(base::valid_utf8(cause));
  broadcast(message);
}

void GroupTable::later(LocalRank& local, std::function<void()> task) {
  executor_.post([weak = std::weak_ptr(locals_.at(local.key())), task = std::move(task)] {
    if (const auto alive = weak.lock()) task();
  });
}

void GroupTable::later(const std::vector<LocalRank*>& locals,
                       std::function<void(const std::vector<dataplane::GroupKey>&)> task) {
  std::vector<std::weak_ptr<LocalRank>> weak;
  for (const LocalRank* local : locals) weak.emplace_back(locals_.at(local->key()));
  executor_.post([weak = std::move(weak), task = std::move(task)] {
    std::vector<dataplane::GroupKey> keys;
    for (const auto& local : weak) {
      if (const auto alive = local.lock()) keys.push_back(alive->key());
    }
    if (!keys.empty()) task(keys);
  });
}

}  // namespace mkernel::cluster

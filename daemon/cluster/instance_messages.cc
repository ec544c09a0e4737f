#include "daemon/cluster/instance_messages.h"

#include <algorithm>
#include <string>

#include "daemon/base/printable.h"

namespace mkernel::cluster {
namespace {

constexpr std::size_t kMaxEarly = std::size_t{1} << 16;

}  // namespace

void InstanceMessages::received(const PeerInfo& from, std::uint64_t id, const v1::PeerMessage& message) {
  if (GroupInstance* instance = table_.find_instance(id)) {
    if (instance->failure()) return;
    const Status applied = apply(from, *instance, message);
    if (!applied.ok()) table_.bus().drop(from.id, applied);
    return;
  }
  if (!table_.somebody_waits_here()) {
    early_.clear();
    early_count_ = 0;
    return;
  }
  if (table_.has_ended(id)) return;
  if (early_count_ >= kMaxEarly) {
    return table_.bus().drop(from.id, violation("too many messages for groups that are not formed"));
  }
  early_[id].emplace_back(from.id, message);
  ++early_count_;
}

Status InstanceMessages::apply(const PeerInfo& from, GroupInstance& instance,
                               const v1::PeerMessage& message) {
  const auto owns = [&](std::uint32_t rank) {
    return rank < instance.world_size() && instance.member(rank).id.peer == from.id &&
           !instance.has_left(rank);
  };
  if (message.has_member_ready()) {
    const std::uint32_t rank = message.member_ready().rank();
    if (!owns(rank)) return violation("member_ready for rank " + std::to_string(rank));
    instance.set_ready(rank);
    groups_.check_all_ready(instance);
    return {};
  }
  if (message.has_region_announced()) {
    const v1::RegionAnnounced& region = message.region_announced();
    if (!owns(region.rank()) || region.index() >= instance.member(region.rank()).region_capacity) {
      return violation("region_announced for rank " + std::to_string(region.rank()) + ", index " +
                       std::to_string(region.index()));
    }
    groups_.apply_region(instance, region.rank(), region.index(), {region.bytes(), region.kind(), 0});
    return {};
  }
  if (message.has_launch_rejected()) {
    const v1::LaunchRejected& rejected = message.launch_rejected();
    if (!owns(rejected.rank()))
      return violation("launch_rejected for rank " + std::to_string(rejected.rank()));
    groups_.apply_rejection(instance, rejected.rank(), rejected.launch(),
                            {failure_code(rejected.code()), base::one_line(rejected.text())});
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
  groups_.advance_exchanges(instance);
  return {};
}

void InstanceMessages::replay(std::uint64_t instance) {
  const auto messages = early_.extract(instance);
  if (messages.empty()) return;
  early_count_ -= messages.mapped().size();
  for (const auto& [peer, message] : messages.mapped()) {
    if (const PeerInfo* from = table_.find_peer(peer)) received(*from, instance, message);
  }
}

void InstanceMessages::drop(std::uint64_t instance) {
  const auto messages = early_.extract(instance);
  if (!messages.empty()) early_count_ -= messages.mapped().size();
}

void InstanceMessages::peer_down(transport::PeerId peer) {
  for (auto& [id, messages] : early_) {
    early_count_ -= std::erase_if(messages, [peer](const auto& entry) { return entry.first == peer; });
  }
  std::erase_if(early_, [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace mkernel::cluster

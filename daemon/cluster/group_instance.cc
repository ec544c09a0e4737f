#include "daemon/cluster/group_instance.h"

namespace mkernel::cluster {

GroupInstance::GroupInstance(std::uint64_t id, std::vector<Member> members)
    : id_(id), members_(std::move(members)) {}

std::set<transport::PeerId> GroupInstance::peers() const {
  std::set<transport::PeerId> peers;
  for (const Member& member : members_) {
    if (!member.local() && !has_left(member.rank)) peers.insert(member.id.peer);
  }
  return peers;
}

std::vector<const Member*> GroupInstance::locals() const {
  std::vector<const Member*> locals;
  for (const Member& member : members_) {
    if (member.local() && !has_left(member.rank)) locals.push_back(&member);
  }
  return locals;
}

std::set<std::uint32_t> GroupInstance::not_ready() const {
  std::set<std::uint32_t> ranks;
  for (const Member& member : members_) {
    if (!is_ready(member.rank)) ranks.insert(member.rank);
  }
  return ranks;
}

void GroupInstance::set_region(std::uint32_t rank, std::uint32_t index, const abi::RegionEntry& entry) {
  if (entry.bytes == 0) {
    regions_.erase({rank, index});
  } else {
    regions_[{rank, index}] = entry;
  }
}

Status GroupInstance::contribute(std::uint32_t rank, std::uint64_t round, const session::Blob& blob) {
  if (round <= completed_ || round > completed_ + 2) {
    return {StatusCode::kInvalidArgument, describe() + ": rank " + std::to_string(rank) +
                                              " contributed to exchange " + std::to_string(round) +
                                              " while exchange " + std::to_string(completed_ + 1) +
                                              " is under way"};
  }
  if (!rounds_[round].emplace(rank, blob).second) {
    return {StatusCode::kInvalidArgument, describe() + ": rank " + std::to_string(rank) +
                                              " contributed twice to exchange " + std::to_string(round)};
  }
  return {};
}

std::optional<std::vector<session::Blob>> GroupInstance::take_round() {
  const auto round = rounds_.find(completed_ + 1);
  if (round == rounds_.end() || round->second.size() != members_.size()) return std::nullopt;
  std::vector<session::Blob> blobs;
  blobs.reserve(members_.size());
  for (const auto& [rank, blob] : round->second) blobs.push_back(blob);
  rounds_.erase(round);
  ++completed_;
  return blobs;
}

std::set<std::uint32_t> GroupInstance::missing() const {
  const auto round = rounds_.find(completed_ + 1);
  std::set<std::uint32_t> ranks;
  for (const Member& member : members_) {
    if (round == rounds_.end() || round->second.count(member.rank) == 0) ranks.insert(member.rank);
  }
  return ranks;
}

std::optional<std::uint32_t> GroupInstance::missing_for_ever() const {
  for (const std::uint32_t rank : missing()) {
    if (has_left(rank)) return rank;
  }
  return std::nullopt;
}

}  // namespace mkernel::cluster

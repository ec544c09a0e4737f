#include "kernels/plan/topology.h"

#include <cstring>
#include <string>

namespace mkernel::kernels {
namespace {

std::string ranks_of_node(const GroupView& group, std::uint32_t node, std::uint32_t count) {
  std::string name = std::to_string(node);
  for (std::uint32_t rank = 0; rank < group.world_size(); ++rank) {
    const abi::Member& member = group.member(rank);
    if (member.node != node || member.node_name[0] == 0) continue;
    name.assign(member.node_name, strnlen(member.node_name, sizeof member.node_name));
    break;
  }
  return "node " + name + " holds " + std::to_string(count) + (count == 1 ? " rank" : " ranks");
}

}  // namespace

Topology::Topology(std::uint32_t nodes, std::uint32_t ranks_per_node)
    : nodes_(nodes), ranks_per_node_(ranks_per_node) {
  for (std::uint32_t rank = 0; rank < nodes * ranks_per_node; ++rank) {
    places_.push_back({rank / ranks_per_node, rank % ranks_per_node});
    ranks_.push_back(rank);
  }
}

Result<Topology> Topology::of(const GroupView& group) {
  std::vector<std::uint32_t> count(group.segment->node_count, 0);
  for (std::uint32_t rank = 0; rank < group.world_size(); ++rank) {
    const std::uint32_t node = group.member(rank).node;
    if (node >= count.size()) {
      return Status(StatusCode::kInternal, "group: rank " + std::to_string(rank) + " is on node " +
                                               std::to_string(node) + " of " + std::to_string(count.size()));
    }
    ++count[node];
  }
  for (std::uint32_t node = 1; node < count.size(); ++node) {
    if (count[node] == count[0]) continue;
    return Status(StatusCode::kInvalidArgument, "group: " + ranks_of_node(group, 0, count[0]) + ", " +
                                                    ranks_of_node(group, node, count[node]) +
                                                    "; the operations need equally many ranks on every node");
  }
  Topology topology(static_cast<std::uint32_t>(count.size()), count.empty() ? 0 : count[0]);
  for (std::uint32_t rank = 0; rank < group.world_size(); ++rank) {
    const abi::Member& member = group.member(rank);
    if (member.local_rank >= topology.ranks_per_node_) {
      return Status(StatusCode::kInternal, "group: rank " + std::to_string(rank) + " has local rank " +
                                               std::to_string(member.local_rank) + " of " +
                                               std::to_string(topology.ranks_per_node_));
    }
    topology.places_[rank] = {member.node, member.local_rank};
    topology.ranks_[member.node * topology.ranks_per_node_ + member.local_rank] = rank;
  }
  return topology;
}

}  // namespace mkernel::kernels

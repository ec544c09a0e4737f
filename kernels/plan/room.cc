#include "kernels/plan/room.h"

namespace mkernel::kernels {

Status check_room(const std::string& name, const Requirements& needs, const Topology& topology,
                  const GroupView& group, const SymmetricView& workspace, std::uint32_t first_lane) {
  if (workspace.bytes < needs.workspace_bytes || workspace.node.size() != topology.ranks_per_node()) {
    return {StatusCode::kInvalidArgument,
            name + ": workspace of " + std::to_string(workspace.bytes) + " bytes on " +
                std::to_string(workspace.node.size()) + " ranks of this node; needs " +
                std::to_string(needs.workspace_bytes) + " on " + std::to_string(topology.ranks_per_node())};
  }
  if (first_lane + needs.lanes > group.segment->lanes) {
    return {StatusCode::kInvalidArgument, name + ": needs " + std::to_string(needs.lanes) +
                                              " lanes from lane " + std::to_string(first_lane) +
                                              " on, the group has " + std::to_string(group.segment->lanes)};
  }
  return {};
}

Status check_ready(const std::string& name, bool bound, const Status& failed) {
  if (!bound) return {StatusCode::kFailedPrecondition, name + ": not bound"};
  if (failed.ok()) return {};
  return {StatusCode::kFailedPrecondition, name + ": an earlier launch failed: " + failed.text()};
}

}  // namespace mkernel::kernels

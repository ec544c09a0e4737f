#include "kernels/plan/room.h"

#include "kernels/base/lent_workspace.h"

namespace mkernel::kernels {

Status check_room(const std::string& name, const Requirements& needs, const Topology& topology,
                  const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
                  std::uint32_t first_lane) {
  const auto holds = [&](const char* what, const SymmetricView& memory, std::uint64_t bytes) -> Status {
    if (memory.bytes >= bytes && (bytes == 0 || memory.node.size() == topology.ranks_per_node())) return {};
    return {StatusCode::kInvalidArgument, name + ": " + what + " of " + std::to_string(memory.bytes) +
                                              " bytes on " + std::to_string(memory.node.size()) +
                                              " ranks of this node; needs " + std::to_string(bytes) + " on " +
                                              std::to_string(topology.ranks_per_node())};
  };
  MK_RETURN_IF_ERROR(holds("workspace", workspace, needs.workspace_bytes));
  MK_RETURN_IF_ERROR(holds("lent workspace", lent, lent_workspace_bytes(needs.lent_bytes)));
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

Status stopped_by_another(const std::string& name) {
  return {StatusCode::kFailedPrecondition, name + ": a launch of another operation of this group failed"};
}

Status another_is_running(const std::string& name, const std::string& whose) {
  return {StatusCode::kFailedPrecondition,
          name + ": a launch of " + whose +
              " is under way: launches of a group must follow each other; begin this one when that one has "
              "ended"};
}

}  // namespace mkernel::kernels

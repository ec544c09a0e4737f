#include "kernels/cpu/launch/binding.h"

#include <new>

#include "kernels/plan/room.h"

namespace mkernel::kernels {

Status Binding::bind(const Requirements& needs, const Topology& topology, const GroupView& group,
                     const SymmetricView& workspace, const SymmetricView& lent, std::uint32_t first_lane) {
  if (group_ != nullptr) return {StatusCode::kFailedPrecondition, name_ + ": bound already"};
  MK_RETURN_IF_ERROR(check_room(name_, needs, topology, group, workspace, lent, first_lane));
  group_ = &group;
  workspace_ = workspace;
  if (needs.lent_bytes > 0) lent_ = lent;
  endpoint_.emplace(group, first_lane, needs.lanes);
  return {};
}

Status Binding::ready() const {
  MK_RETURN_IF_ERROR(check_ready(name_, group_ != nullptr, failed_));
  return lent_.mine != nullptr && lent_control().stopped != 0 ? stopped_by_another(name_) : Status();
}

Status Binding::launch(const Topology& topology, const ExecutorOptions& options,
                       const std::function<void(Launch&)>& start) {
  MK_RETURN_IF_ERROR(ready());
  MK_RETURN_IF_ERROR(check_deadline(options.deadline).with_context(name_));
  failed_ = run(topology, options, start);
  if (!failed_.ok()) {
    if (lent_.mine != nullptr) lent_control().stopped = 1;
    return failed_.with_context(name_);
  }
  ++epoch_;
  if (lent_.mine != nullptr) ++lent_control().launches;
  return {};
}

Status Binding::run(const Topology& topology, const ExecutorOptions& options,
                    const std::function<void(Launch&)>& start) {
  const std::uint64_t bytes_before = endpoint_->bytes_put();
  Launch launch;
  launch.epoch = epoch_;
  if (lent_.mine != nullptr)
    launch.half_at = lent_half_at(lent_control().launches, lent_half_bytes(lent_.bytes));
  launch.compute_threads = compute_threads(options, topology);
  launch.scope = {group_->session, group_->segment,  &launch.roles.stop(),
                  group_->rank(),  options.deadline, options.trace};
  launch.roles.trace_to(options.trace);
  try {
    start(launch);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted, "rank " + std::to_string(group_->rank()) + ": out of memory"};
  }
  MK_RETURN_IF_ERROR(launch.roles.join());
  // The workspace may go away after the last launch: nothing of ours is under way then.
  MK_RETURN_IF_ERROR(endpoint_->wait_all_completed("inter_send", launch.scope));
  wire_bytes_ = endpoint_->bytes_put() - bytes_before;
  return {};
}

}  // namespace mkernel::kernels

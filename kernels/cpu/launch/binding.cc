#include "kernels/cpu/launch/binding.h"

#include <atomic>
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
  const MutexLock lock(mutex_);
  if (running_) return another_is_running(name_, "this operation");
  MK_RETURN_IF_ERROR(check_ready(name_, group_ != nullptr, failed_));
  return lent_.mine != nullptr && lent_control().stopped != 0 ? stopped_by_another(name_) : Status();
}

Status Binding::launch(const Topology& topology, const ExecutorOptions& options,
                       const std::function<void(Launch&)>& start) {
  MK_RETURN_IF_ERROR(ready());
  MK_RETURN_IF_ERROR(check_deadline(options.deadline).with_context(name_));
  MK_RETURN_IF_ERROR(take());
  const Status outcome = run(topology, options, start);
  give_back(outcome);
  return outcome.with_context(name_);
}

Status Binding::take() {
  const MutexLock lock(mutex_);
  if (running_) return another_is_running(name_, "this operation");
  if (lent_.mine != nullptr &&
      std::atomic_ref(lent_control().running).exchange(1, std::memory_order_acquire) != 0)
    return another_is_running(name_, "another operation of this group");
  running_ = true;
  return {};
}

void Binding::give_back(const Status& outcome) {
  const MutexLock lock(mutex_);
  running_ = false;
  failed_ = outcome;
  if (outcome.ok()) ++epoch_;
  if (lent_.mine == nullptr) return;
  if (outcome.ok()) {
    ++lent_control().launches;
  } else {
    lent_control().stopped = 1;
  }
  std::atomic_ref(lent_control().running).store(0, std::memory_order_release);
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

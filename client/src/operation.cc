#include "client/src/operation.h"

#include <algorithm>

#include "client/src/guard.h"

namespace mkernel::client {

OperationState::OperationState(std::shared_ptr<GroupCore> group, std::unique_ptr<OperationBase> operation)
    : group_(std::move(group)),
      signature_(operation->signature()),
      in_group_("operation " + std::to_string(group_->next_operation()) + ", " + signature_),
      operation_(std::move(operation)) {}

Result<std::unique_ptr<OperationState>> OperationState::create(std::shared_ptr<GroupCore> group,
                                                               Result<std::unique_ptr<OperationBase>> made) {
  const std::string signature = made.ok() ? made.value()->signature() : "no operation";
  MK_RETURN_IF_ERROR(group->agree(signature, made.status()));
  std::unique_ptr<OperationState> state(new OperationState(group, std::move(made).value()));
  const Requirements needs = state->operation_->requirements();
  MemorySource* memory = &host_memory();
  if (needs.gpu) {
    auto gpu = group->session().gpu_memory();
    Status ready = gpu.ok() ? group->pin_segments() : gpu.status();
    MK_RETURN_IF_ERROR(group->agree(signature, ready));
    memory = gpu->get();
  }
  if (needs.lent_bytes > 0) {
    auto lent = group->lent().take(group, *memory, needs.lent_bytes);
    if (!lent.ok()) return lent.status();
    state->lent_ = std::move(*lent);
  }
  const std::uint64_t bytes = std::max<std::uint64_t>(needs.workspace_bytes, 64);
  // Once all ranks have bound, their counts of the lanes stand still until the first launch.
  auto workspace =
      open_symmetric(group, *memory, bytes, [&](const BufferState& opened) -> Result<std::string> {
        MK_RETURN_IF_ERROR(state->bind(opened));
        return signature + " on lanes from " + std::to_string(state->first_lane_);
      });
  if (!workspace.ok()) return workspace.status();
  state->workspace_ = std::move(*workspace);
  return state;
}

Status OperationState::bind(const BufferState& workspace) {
  const std::uint32_t count = operation_->requirements().lanes;
  if (count > 0) {
    const auto first = group_->take_lanes(count, signature_);
    MK_RETURN_IF_ERROR(first.status());
    first_lane_ = first.value();
    lanes_ = count;
  }
  return operation_->bind(group_->view(), workspace.view,
                          lent_ == nullptr ? kernels::SymmetricView{} : lent_->view, first_lane_);
}

OperationState::~OperationState() {
  {
    const MutexLock lock(mutex_);
    while (in_flight_ != 0) idle_.wait(mutex_);
  }
  operation_.reset();  // before the workspaces it points into
  if (lanes_ > 0) group_->retire({.first_lane = first_lane_, .lanes = lanes_});
}

Result<Pending> OperationState::launch(std::function<Status(OperationBase&)> run) {
  MK_RETURN_IF_ERROR(group_->status().with_context(signature_));
  const std::shared_ptr<PendingState> pending = shared_at_home(new PendingState);
  std::function<void()> task = [this, pending, run = std::move(run)] {
    Status outcome = without_exceptions([&] { return run_one(run); });
    {
      const MutexLock lock(mutex_);
      wire_bytes_ = operation_->wire_bytes();
      --unfinished_;  // before the caller learns that it is over and may call enqueue()
    }
    pending->finish(std::move(outcome));
    one_less();
  };
  {
    const MutexLock lock(mutex_);
    ++in_flight_;
    ++unfinished_;
  }
  try {
    group_->worker().post(std::move(task));
  } catch (...) {
    {
      const MutexLock lock(mutex_);
      --unfinished_;
    }
    one_less();
    throw;
  }
  return Pending(pending);
}

Status OperationState::begin(bool queued) {
  return mkernel::concerns_others(operation_->kind()) ? group_->whereabouts().begin_launch(in_group_, queued)
                                                      : Status();
}

void OperationState::one_less() {
  // Notifies under the lock: the destructor may go on as soon as it can take it.
  const MutexLock lock(mutex_);
  if (--in_flight_ == 0) idle_.notify_all();
}

Status OperationState::run_one(const std::function<Status(OperationBase&)>& run) {
  MK_RETURN_IF_ERROR(group_->status().with_context(signature_));
  group_->session().count_launch();
  group_->session().begin_activity();
  Status outcome = begin(false);
  const bool begun = outcome.ok();
  if (begun) outcome = run(*operation_);
  group_->session().end_activity();
  const bool alike = begun && operation_->refused();
  const Status settled = settle(outcome, alike);
  if (mkernel::concerns_others(operation_->kind()) && (settled.ok() || alike))
    group_->whereabouts().end_launch();
  return settled;
}

Status OperationState::enqueue(const std::function<Status(OperationBase&)>& run) {
  int unfinished = 0;
  {
    const MutexLock lock(mutex_);
    unfinished = unfinished_;
  }
  if (unfinished > 0) {
    return settle({StatusCode::kFailedPrecondition,
                   "enqueue() while " + std::to_string(unfinished) +
                       " launches by launch() are not over: launches of a group must follow each other; wait "
                       "for their Pending first"},
                  false);
  }
  MK_RETURN_IF_ERROR(group_->status().with_context(signature_));
  if (const Status begun = begin(true); !begun.ok()) return settle(begun, false);
  return at_once([&](OperationBase& operation) {
    group_->session().count_launch();
    return run(operation);
  });
}

Status OperationState::at_once(const std::function<Status(OperationBase&)>& run) {
  MK_RETURN_IF_ERROR(group_->status().with_context(signature_));
  const Status outcome = run(*operation_);
  {
    const MutexLock lock(mutex_);
    wire_bytes_ = operation_->wire_bytes();
  }
  return settle(outcome, operation_->refused());
}

Status OperationState::settle(const Status& outcome, bool alike) {
  if (outcome.ok()) return outcome;
  // When the group failed first, its record names the cause; this rank's error is only how it noticed.
  const Status cause = group_->status();
  if (cause.ok() && alike) return outcome.with_context(signature_);
  const Status why = (cause.ok() ? outcome : cause).with_context(signature_);
  // The other ranks wait for this one: they hear of it now, not at their deadline.
  if (group_->failure().ok()) (void)group_->fail(why);
  return group_->with_whereabouts(why);
}

std::uint64_t OperationState::wire_bytes() const {
  const MutexLock lock(mutex_);
  return wire_bytes_;
}

}  // namespace mkernel::client

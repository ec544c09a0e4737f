// A launch on its way: the state that the worker finishes and the handles that wait for it.
#include "client/src/guard.h"
#include "client/src/operation.h"
#include "mkernel/client.h"

namespace mkernel {

void client::PendingState::finish(Status outcome) {
  const std::lock_guard lock(mutex);
  status = std::move(outcome);
  done = true;
  over.notify_all();
}

Pending::Pending(std::shared_ptr<client::PendingState> state) : state_(std::move(state)) {}
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;
Pending::~Pending() = default;

bool Pending::done() const {
  if (!state_->home.here()) return true;  // wait() says that it is not this process's
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

Status Pending::wait() const {
  return client::call(state_->home, [&]() -> Status {
    std::unique_lock lock(state_->mutex);
    state_->over.wait(lock, [this] { return state_->done; });
    return state_->status;
  });
}

Status Pending::wait_for(std::chrono::milliseconds limit) const {
  return client::call(state_->home, [&]() -> Status {
    std::unique_lock lock(state_->mutex);
    if (state_->over.wait_for(lock, limit, [this] { return state_->done; })) return state_->status;
    return {StatusCode::kDeadlineExceeded,
            "the launch is not over after " + std::to_string(limit.count()) + " ms; it goes on"};
  });
}

}  // namespace mkernel

// A launch on its way: the state that the worker finishes and the handles that wait for it.
#include "client/src/guard.h"
#include "client/src/operation.h"
#include "mkernel/client.h"

namespace mkernel {

void client::PendingState::finish(Status outcome) {
  const MutexLock lock(mutex);
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
  const MutexLock lock(state_->mutex);
  return state_->done;
}

Status Pending::wait() const {
  return client::call(state_->home, [&]() -> Status {
    const MutexLock lock(state_->mutex);
    while (!state_->done) state_->over.wait(state_->mutex);
    return state_->status;
  });
}

Status Pending::wait_for(std::chrono::milliseconds limit) const {
  return client::call(state_->home, [&]() -> Status {
    const auto deadline = client::Clock::now() + limit;
    const MutexLock lock(state_->mutex);
    while (!state_->done && state_->over.wait_until(state_->mutex, deadline)) {
    }
    if (state_->done) return state_->status;
    return {StatusCode::kDeadlineExceeded,
            "the launch is not over after " + std::to_string(limit.count()) + " ms; it goes on"};
  });
}

}  // namespace mkernel

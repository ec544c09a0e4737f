#include "tests/support/fake_nic/timeline.h"

#include <utility>

namespace mkernel::test::nic {

Timeline::Timeline(std::mutex& lock) : lock_(lock) {
  thread_ = std::thread([this] {
    std::unique_lock held(lock_);
    while (!over_) {
      run();
      if (over_) return;
      if (events_.empty()) {
        changed_.wait(held);
      } else {
        const Time due = events_.top().due;
        changed_.wait_until(held, due);
      }
    }
  });
}

Timeline::~Timeline() {
  {
    const std::lock_guard held(lock_);
    over_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Timeline::at(Time due, std::function<void()> call) {
  const bool first = events_.empty() || due < events_.top().due;
  events_.push(Event{due, next_order_++, std::move(call)});
  if (first) changed_.notify_all();
}

void Timeline::run() {
  if (running_ || events_.empty()) return;
  running_ = true;
  while (!events_.empty() && events_.top().due <= Clock::now()) {
    const auto call = std::move(const_cast<Event&>(events_.top()).call);
    events_.pop();
    call();
  }
  running_ = false;
}

}  // namespace mkernel::test::nic

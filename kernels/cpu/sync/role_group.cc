#include "kernels/cpu/sync/role_group.h"

#include <chrono>
#include <new>
#include <system_error>
#include <utility>

#include "kernels/cpu/sync/wait.h"
#include "mkernel/trace.h"

namespace mkernel::kernels {

RoleGroup::~RoleGroup() {
  (void)join();
}

void RoleGroup::fail(Status status) {
  const MutexLock lock(mutex_);
  if (first_.ok()) first_ = std::move(status);
  stop_.store(true, std::memory_order_release);
}

void RoleGroup::start(std::string name, std::function<Status()> role) {
  const auto track = static_cast<std::uint32_t>(threads_.size());
  auto body = [this, name, track, trace = trace_, role = std::move(role)] {
    current_track() = track;
    const auto begin = std::chrono::steady_clock::now();
    try {
      if (Status status = role(); !status.ok()) fail(std::move(status));
    } catch (const std::bad_alloc&) {
      fail({StatusCode::kResourceExhausted, "role " + name + ": out of memory"});
    }
    if (trace == nullptr) return;
    trace->add({TraceEvent::Kind::kRole, track, name, -1, trace_ns(begin),
                trace_ns(std::chrono::steady_clock::now())});
  };
  try {
    threads_.emplace_back(std::move(body));
  } catch (const std::system_error& error) {
    fail({StatusCode::kResourceExhausted, "role " + name + ": cannot start a thread: " + error.what()});
  }
}

Status RoleGroup::join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  const MutexLock lock(mutex_);
  return first_;
}

}  // namespace mkernel::kernels

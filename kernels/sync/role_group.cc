#include "kernels/sync/role_group.h"

#include <new>
#include <system_error>
#include <utility>

namespace mkernel::kernels {

RoleGroup::~RoleGroup() {
  (void)join();
}

void RoleGroup::fail(Status status) {
  const std::lock_guard lock(mutex_);
  if (first_.ok()) first_ = std::move(status);
  stop_.store(true, std::memory_order_release);
}

void RoleGroup::start(std::string name, std::function<Status()> role) {
  auto body = [this, name, role = std::move(role)] {
    try {
      if (Status status = role(); !status.ok()) fail(std::move(status));
    } catch (const std::bad_alloc&) {
      fail({StatusCode::kResourceExhausted, "role " + name + ": out of memory"});
    }
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
  const std::lock_guard lock(mutex_);
  return first_;
}

}  // namespace mkernel::kernels

#include "daemon/transport/rdma/registrar.h"

#include <exception>
#include <utility>

#include "daemon/base/thread.h"

namespace mkernel::transport::rdma {

Registrar::Registrar() {
  finished_.begin_sleep();  // for good: whatever is posted rings
  thread_ = std::thread([this] {
    base::name_this_thread("mk-register");
    work();
  });
}

Result<std::unique_ptr<Registrar>> Registrar::make() {
  try {
    return std::unique_ptr<Registrar>(new Registrar);
  } catch (const std::exception& error) {
    return Status(StatusCode::kResourceExhausted,
                  std::string("starting the thread that registers memory: ") + error.what());
  }
}

Registrar::~Registrar() {
  stop();
}

/// Reads the fd, which was written to since the last time: run() is called in every poll of the transport and
/// must cost no system call without that. It is read before the mailbox is looked at, so that whatever it was
/// written for is called now. A write that comes after its work has been called is read by the next run().
void Registrar::hear(std::uint64_t rung) {
  heard_ = rung;
  finished_.end_sleep();
  finished_.begin_sleep();
}

void Registrar::stop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock held(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
  std::deque<Item> left;
  {
    const MutexLock held(mutex_);
    left.swap(items_);
  }
  left.clear();
  run();
}

void Registrar::post(std::function<void()> work, std::function<void()> done) {
  if (!thread_.joinable()) {
    work();
    if (done) done();
    return;
  }
  {
    const MutexLock held(mutex_);
    items_.push_back({std::move(work), std::move(done)});
  }
  changed_.notify_one();
}

void Registrar::work() {
  MutexLock held(mutex_);
  for (;;) {
    while (!over_ && items_.empty()) changed_.wait(mutex_);
    if (over_) return;
    Item item = std::move(items_.front());
    items_.pop_front();
    held.unlock();
    item.work();
    item.work = {};  // what it holds goes here
    if (item.done) {
      finished_.post(std::move(item.done));
      rung_.fetch_add(1, std::memory_order_release);
    }
    held.lock();
  }
}

}  // namespace mkernel::transport::rdma

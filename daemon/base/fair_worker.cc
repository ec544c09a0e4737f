#include "daemon/base/fair_worker.h"

#include <utility>

#include "daemon/base/thread.h"

namespace mkernel::base {

FairWorker::FairWorker(const std::string& name)
    : thread_([this, name] {
        name_this_thread(name);
        run();
      }) {}

FairWorker::~FairWorker() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void FairWorker::post(std::uint64_t owner, Job job) {
  {
    const MutexLock lock(mutex_);
    jobs_[owner].push_back(std::move(job));
  }
  wake_.notify_one();
}

FairWorker::Job FairWorker::take() {
  if (jobs_.empty()) return nullptr;
  auto next = jobs_.upper_bound(last_);
  if (next == jobs_.end()) next = jobs_.begin();
  last_ = next->first;
  Job job = std::move(next->second.front());
  next->second.pop_front();
  if (next->second.empty()) jobs_.erase(next);
  return job;
}

void FairWorker::run() {
  MutexLock lock(mutex_);
  for (;;) {
    while (!stopping_ && jobs_.empty()) wake_.wait(mutex_);
    Job job = take();
    if (job == nullptr) return;
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

}  // namespace mkernel::base

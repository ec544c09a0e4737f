// One thread that runs what it is given, in order.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "proto/base/mutex.h"

namespace mkernel::client {

class Worker {
 public:
  Worker() : thread_([this] { work(); }) {}
  /// Runs what is queued, then joins.
  ~Worker() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Nothing is queued and nothing runs.
  bool idle() {
    const MutexLock lock(mutex_);
    return tasks_.empty() && !running_;
  }

  /// Any thread but the worker's own.
  void post(std::function<void()> task) {
    {
      const MutexLock lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }

 private:
  void work() {
    MutexLock lock(mutex_);
    while (true) {
      while (!stopping_ && tasks_.empty()) wake_.wait(mutex_);
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      running_ = true;
      lock.unlock();
      task();
      lock.lock();
      running_ = false;
    }
  }

  Mutex mutex_;
  ConditionVariable wake_;
  std::deque<std::function<void()>> tasks_ MK_GUARDED_BY(mutex_);
  bool running_ MK_GUARDED_BY(mutex_) = false;
  bool stopping_ MK_GUARDED_BY(mutex_) = false;

  std::thread thread_;  ///< last: starts when everything above is there
};

}  // namespace mkernel::client

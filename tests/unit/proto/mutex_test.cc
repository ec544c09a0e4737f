#include "proto/base/mutex.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

using namespace std::chrono_literals;

namespace {

class Box {
 public:
  void put(int value) {
    {
      const mkernel::MutexLock lock(mutex_);
      value_ = value;
      full_ = true;
    }
    filled_.notify_all();
  }
  int take() {
    const mkernel::MutexLock lock(mutex_);
    while (!full_) filled_.wait(mutex_);
    full_ = false;
    return value_;
  }
  bool full_within(std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    const mkernel::MutexLock lock(mutex_);
    while (!full_ && filled_.wait_until(mutex_, deadline)) {
    }
    return full_;
  }

 private:
  mkernel::Mutex mutex_;
  mkernel::ConditionVariable filled_;
  int value_ MK_GUARDED_BY(mutex_) = 0;
  bool full_ MK_GUARDED_BY(mutex_) = false;
};

}  // namespace

TEST_CASE("a wait ends with what it waited for, and the mutex is free afterwards") {
  Box box;
  for (int value = 1; value <= 100; ++value) {
    std::jthread other([&] { box.put(value); });
    CHECK(box.take() == value);
  }
}

TEST_CASE("a wait with a deadline says whether it was in vain, and the mutex is free afterwards") {
  Box box;
  CHECK_FALSE(box.full_within(1ms));
  box.put(7);
  CHECK(box.full_within(1h));
  CHECK(box.take() == 7);
}

TEST_CASE("a lock that was given up for a part of its scope holds the mutex again, or leaves it alone") {
  mkernel::Mutex mutex;
  int guarded = 0;
  {
    mkernel::MutexLock lock(mutex);
    lock.unlock();
    std::jthread([&] {
      const mkernel::MutexLock inner(mutex);
      guarded = 1;
    }).join();
    lock.lock();
    CHECK(guarded == 1);
  }
  {
    mkernel::MutexLock lock(mutex);
    lock.unlock();
  }
  const mkernel::MutexLock last(mutex);  // would hang if one of the scopes had left it locked
}

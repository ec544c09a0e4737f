// A mutex, a scoped lock and a condition variable whose rules clang checks at compile time: which members a
// mutex guards, and which functions need it held. To other compilers they are the std:: types.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define MK_THREAD_ATTRIBUTE(...) __attribute__((__VA_ARGS__))
#else
#define MK_THREAD_ATTRIBUTE(...)
#endif

/// The member is read and written only while the mutex is held.
#define MK_GUARDED_BY(mutex) MK_THREAD_ATTRIBUTE(guarded_by(mutex))
/// The function is called only while the mutex is held.
#define MK_REQUIRES(...) MK_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
/// The function takes the mutex itself: its caller must not hold it.
#define MK_EXCLUDES(...) MK_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))

namespace mkernel {

class MK_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() MK_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() MK_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
  friend class ConditionVariable;
  std::mutex mutex_;
};

/// Holds a mutex until the end of its scope. unlock() and lock() give it up for a part of the scope.
class MK_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) MK_THREAD_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() MK_THREAD_ATTRIBUTE(release_capability()) {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() MK_THREAD_ATTRIBUTE(acquire_capability()) {
    mutex_.lock();
    held_ = true;
  }
  void unlock() MK_THREAD_ATTRIBUTE(release_capability()) {
    held_ = false;
    mutex_.unlock();
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

/// Waits may end without a notification: call them in a loop that checks the condition. There is no form that
/// takes the condition as a lambda, because clang checks the body of a lambda as that of a function without
/// the mutex.
class ConditionVariable {
 public:
  void notify_one() { variable_.notify_one(); }
  void notify_all() { variable_.notify_all(); }

  /// Gives up `mutex` while it waits, and holds it again when it returns.
  void wait(Mutex& mutex) MK_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    variable_.wait(lock);
    lock.release();
  }
  /// The same. False: the deadline has passed. The condition may hold even then.
  bool wait_until(Mutex& mutex, std::chrono::steady_clock::time_point deadline) MK_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = variable_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }

 private:
  std::condition_variable variable_;
};

}  // namespace mkernel

// What happens later on the fabric: calls in the order of their time, made by whoever comes by, or else by a
// thread of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

namespace mkernel::test::nic {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

/// Every call with the lock held, which the calls that it makes may rely on.
class Timeline {
 public:
  explicit Timeline(std::mutex& lock);
  /// Without the lock.
  ~Timeline();

  /// Calls of the same time are made in the order in which they came.
  void at(Time due, std::function<void()> call);
  /// Makes the calls that are due.
  void run();

 private:
  struct Event {
    Time due;
    std::uint64_t order;
    std::function<void()> call;
    bool operator<(const Event& other) const {
      return due != other.due ? due > other.due : order > other.order;
    }
  };

  std::mutex& lock_;
  std::condition_variable changed_;
  std::priority_queue<Event> events_;
  std::uint64_t next_order_ = 0;
  bool running_ = false;  ///< run() does not nest
  bool over_ = false;
  std::thread thread_;
};

}  // namespace mkernel::test::nic

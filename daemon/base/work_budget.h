// How much of a long job may be done at once. Threads that others wait for do long jobs in slices: they stop
// when the budget is used up and go on in their next round.
#pragma once

#include <chrono>
#include <cstdint>

#include "daemon/base/clock.h"

namespace mkernel::base {

/// One thread. A job asks left() after each of its steps, so that every call makes some progress.
class WorkBudget {
 public:
  /// Used up when `limit` has passed.
  explicit WorkBudget(std::chrono::nanoseconds limit) : end_(Clock::now() + limit) {}
  /// Never used up: for the end of a thread, when nobody waits.
  static WorkBudget unlimited() { return WorkBudget(TimePoint::max()); }

  /// True while there is time for more. `steps`: how much was done since the last call, in units of some ten
  /// nanoseconds; the clock is looked at every kStepsPerLook of them.
  bool left(std::uint32_t steps = kStepsPerLook) {
    since_look_ += steps;
    if (since_look_ < kStepsPerLook) return true;
    since_look_ = 0;
    return Clock::now() < end_;
  }

  static constexpr std::uint32_t kStepsPerLook = 64;

 private:
  explicit WorkBudget(TimePoint end) : end_(end) {}

  TimePoint end_;
  std::uint32_t since_look_ = 0;
};

}  // namespace mkernel::base

#include "daemon/base/slice_meter.h"

#include <algorithm>
#include <ctime>
#include <utility>

namespace mkernel::base {
namespace {

std::chrono::nanoseconds thread_processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

void SliceMeter::begin() {
  woke_up();
  first_look_ = last_look_;
  first_ticks_ = ticks_began_;
  read_busy(last_look_);
}

void SliceMeter::woke_up() {
  last_look_ = Clock::now();
  ticks_began_ = ticks();
  unseen_ = 0;
  if (last_look_ - last_reading_ > kWorthReading) read_busy(last_look_);
}

/// How long the thread was busy since the last reading.
std::chrono::nanoseconds SliceMeter::read_busy(TimePoint now) {
  const std::chrono::nanoseconds busy = thread_processor_time();
  last_reading_ = now;
  return busy - std::exchange(busy_at_reading_, busy);
}

// The slice took no longer than by the wall clock, nor than the thread was busy since the last reading, which
// is a millisecond before the slice at most.
void SliceMeter::look(std::uint64_t now_ticks) {
  const TimePoint now = Clock::now();
  // Until the length of a tick is known no slice is left out: this one began at the last look.
  const std::chrono::nanoseconds wall =
      short_ticks_ == 0 ? now - last_look_
                        : std::chrono::nanoseconds(static_cast<std::int64_t>(
                              static_cast<double>(now_ticks - ticks_began_) * ns_per_tick_));
  ticks_began_ = now_ticks;
  last_look_ = now;
  unseen_ = 0;
  if (short_ticks_ == 0 && now - first_look_ > kWorthReading) learn_ticks(now, now_ticks);
  if (now - last_reading_ <= kWorthReading) return;
  const std::chrono::nanoseconds busy = read_busy(now);
  if (wall > kWorthReading) record(std::min(wall, busy));
}

void SliceMeter::learn_ticks(TimePoint now, std::uint64_t now_ticks) {
  if (now_ticks <= first_ticks_) return;
  ns_per_tick_ = static_cast<double>(std::chrono::nanoseconds(now - first_look_).count()) /
                 static_cast<double>(now_ticks - first_ticks_);
  short_ticks_ = static_cast<std::uint64_t>(static_cast<double>(std::chrono::nanoseconds(kShort).count()) /
                                            ns_per_tick_);
}

void SliceMeter::record(std::chrono::nanoseconds busy) {
  if (busy.count() > longest_.load(std::memory_order_relaxed)) {
    longest_.store(busy.count(), std::memory_order_relaxed);
  }
  if (busy > kLimit) {
    over_limit_.store(over_limit_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
}

}  // namespace mkernel::base

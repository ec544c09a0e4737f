#include "daemon/base/slice_meter.h"

#include <time.h>

#include <algorithm>
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
  read_busy(slice_began_);
}

void SliceMeter::woke_up() {
  slice_began_ = Clock::now();
  unseen_ = 0;
  interval_ = 1;
  if (slice_began_ - last_reading_ > kWorthReading) read_busy(slice_began_);
}

/// How long the thread was busy since the last reading.
std::chrono::nanoseconds SliceMeter::read_busy(TimePoint now) {
  const std::chrono::nanoseconds busy = thread_processor_time();
  last_reading_ = now;
  return busy - std::exchange(busy_at_reading_, busy);
}

// The slice took no longer than by the wall clock, nor than the thread was busy since the last reading, which
// is a millisecond before the slice at most.
void SliceMeter::look(TimePoint now) {
  const std::chrono::nanoseconds wall = now - slice_began_;
  interval_ = wall < kShort ? std::min(2 * interval_, kMostUnseen) : 1;
  unseen_ = 0;
  slice_began_ = now;
  if (now - last_reading_ <= kWorthReading) return;
  const std::chrono::nanoseconds busy = read_busy(now);
  if (wall > kWorthReading) record(std::min(wall, busy));
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

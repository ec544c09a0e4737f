#include "daemon/base/slice_meter.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <optional>
#include <utility>

namespace mkernel::base {
namespace {

std::chrono::nanoseconds thread_processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

/// How long the thread of this schedstat stood in line for a processor; none where the kernel does not keep
/// it, which shows as a thread that never had a turn.
std::optional<std::chrono::nanoseconds> time_in_line(int schedstat) {
  std::array<char, 96> text;  // "ran in_line turns", the first two in nanoseconds
  const ssize_t size = ::pread(schedstat, text.data(), text.size(), 0);
  if (size <= 0) return std::nullopt;
  std::array<std::int64_t, 3> numbers{};
  const char *at = text.data(), *const end = text.data() + size;
  for (std::int64_t& number : numbers) {
    const auto parsed = std::from_chars(at, end, number);
    if (parsed.ec != std::errc()) return std::nullopt;
    at = parsed.ptr + (parsed.ptr == end ? 0 : 1);
  }
  const auto [ran, in_line, turns] = numbers;
  if (turns == 0) return std::nullopt;
  return std::chrono::nanoseconds(in_line);
}

}  // namespace

void SliceMeter::begin() {
  in_line_ = ipc::UniqueFd(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
  if (!time_in_line(in_line_.get())) in_line_.reset();
  knows_sleep_.store(in_line_.valid(), std::memory_order_relaxed);
  read_spent(Clock::now());
  begin_slice();
  first_look_ = last_look_;
  first_ticks_ = ticks_began_;
}

SliceTimes SliceMeter::times() const {
  SliceTimes seen;
  seen.longest = busy_.longest();
  seen.over_limit = busy_.over_limit();
  seen.longest_wall = wall_.longest();
  seen.wall_over_limit = wall_.over_limit();
  seen.longest_asleep = asleep_.longest();
  seen.asleep_over_limit = asleep_.over_limit();
  seen.knows_sleep = knows_sleep_.load(std::memory_order_relaxed);
  return seen;
}

void SliceMeter::woke_up() {
  const TimePoint now = Clock::now();
  if (now - last_reading_ > kWorthReading) read_spent(now);
  begin_slice();
}

/// Behind all readings: the thread may be taken off its processor between any two of them. What a reading
/// says about a slice is then too much at the worst, and nothing of the slice is called sleep for it.
void SliceMeter::begin_slice() {
  last_look_ = Clock::now();
  ticks_began_ = ticks();
  unseen_ = 0;
}

/// What the time since the last reading went to.
SliceMeter::Spent SliceMeter::read_spent(TimePoint now) {
  last_reading_ = now;
  const Spent here{thread_processor_time(), in_line_.valid()
                                                ? time_in_line(in_line_.get()).value_or(at_reading_.in_line)
                                                : std::chrono::nanoseconds(0)};
  const Spent before = std::exchange(at_reading_, here);
  return {here.busy - before.busy, here.in_line - before.in_line};
}

// The thread was busy in the slice no longer than the slice took, nor than it was busy since the last
// reading, which is a millisecond before the slice at most. So what is called sleep is too short by that at
// most.
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
  const Spent spent = read_spent(now);
  begin_slice();
  if (wall <= kWorthReading) return;
  wall_.record(wall);
  busy_.record(std::min(wall, spent.busy));
  if (in_line_.valid()) asleep_.record(wall - spent.busy - spent.in_line);
}

void SliceMeter::learn_ticks(TimePoint now, std::uint64_t now_ticks) {
  if (now_ticks <= first_ticks_) return;
  ns_per_tick_ = static_cast<double>(std::chrono::nanoseconds(now - first_look_).count()) /
                 static_cast<double>(now_ticks - first_ticks_);
  short_ticks_ = static_cast<std::uint64_t>(static_cast<double>(std::chrono::nanoseconds(kShort).count()) /
                                            ns_per_tick_);
}

void SliceMeter::Longest::record(std::chrono::nanoseconds slice) {
  if (slice.count() > longest_.load(std::memory_order_relaxed)) {
    longest_.store(slice.count(), std::memory_order_relaxed);
  }
  if (slice > kLimit) {
    over_limit_.store(over_limit_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
}

}  // namespace mkernel::base

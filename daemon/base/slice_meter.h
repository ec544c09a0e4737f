// How long one thread is busy without looking after anything else: the longest slice of its processor time,
// and how many slices were longer than the bound that the daemon promises.
//
// A slice is what a thread does between two calls of end_slice(): a command, a round, a handler. Processor
// time costs a system call, so it is read only when more than a millisecond of wall time has passed since the
// last reading. While slices are short, even the wall clock is looked at every sixteenth time only: that they
// are short the processor's time stamp counter says, at a third of the price.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "daemon/base/clock.h"

namespace mkernel::base {

/// What a meter has seen.
struct SliceTimes {
  std::chrono::nanoseconds longest{0};  ///< 0: all were shorter than a millisecond
  std::uint64_t over_limit = 0;         ///< slices of more than SliceMeter::kLimit
};

/// Thread rule: begin(), end_slice() and woke_up() by the measured thread; times() by any.
class SliceMeter {
 public:
  /// What a slice of a proxy or control thread may take.
  static constexpr std::chrono::milliseconds kLimit{10};

  /// The calling thread is the measured one; its first slice begins.
  void begin();
  /// A slice ends, the next one begins.
  void end_slice() {
    const std::uint64_t now = ticks();
    if (now - ticks_began_ < short_ticks_ && ++unseen_ < kMostUnseen) {
      ticks_began_ = now;
      return;
    }
    look(now);
  }
  /// The thread has slept: the next slice begins now.
  void woke_up();

  SliceTimes times() const {
    return {std::chrono::nanoseconds(longest_.load(std::memory_order_relaxed)),
            over_limit_.load(std::memory_order_relaxed)};
  }

 private:
  static constexpr std::chrono::milliseconds kWorthReading{1};
  static constexpr std::chrono::microseconds kShort{20};  ///< a slice below this is counted, not measured
  static constexpr std::uint32_t kMostUnseen = 16;

  static std::uint64_t ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
#endif
  }
  void look(std::uint64_t now_ticks);
  void learn_ticks(TimePoint now, std::uint64_t now_ticks);
  std::chrono::nanoseconds read_busy(TimePoint now);
  void record(std::chrono::nanoseconds busy);

  std::uint64_t ticks_began_ = 0;  ///< time stamp counter when the slice began
  std::uint64_t short_ticks_ = 0;  ///< kShort in ticks; 0 until the length of a tick is known
  double ns_per_tick_ = 0;
  TimePoint first_look_{};
  std::uint64_t first_ticks_ = 0;
  TimePoint last_look_{};
  TimePoint last_reading_{};
  std::chrono::nanoseconds busy_at_reading_{0};
  std::uint32_t unseen_ = 0;  ///< short slices since the last look
  std::atomic<std::int64_t> longest_{0};
  std::atomic<std::uint64_t> over_limit_{0};
};

}  // namespace mkernel::base

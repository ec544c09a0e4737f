// How long one thread does one thing without looking after anything else: the longest slice, and how many
// slices were longer than the bound that the daemon promises, by three clocks.
//
// A slice is what a thread does between two calls of end_slice(): a command, a round, a handler. A wait that
// the thread chose, for its next command, is no part of a slice. Of a slice count
//   - processor time: how long the thread ran;
//   - wall time: how long others had to wait for it;
//   - sleep: wall time in which the thread neither ran nor stood in line for a processor. It then slept in
//     something that it did not choose to wait for: a page fault, a lock, a close() that blocks. A busy
//     machine makes wall time long and leaves this at zero.
//
// Processor time and the time in line cost a system call each, so they are read only when more than a
// millisecond of wall time has passed since the last reading. While slices are short, even the wall clock is
// looked at every sixteenth time only: that they are short the processor's time stamp counter says, at a
// third of the price.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "daemon/base/clock.h"
#include "proto/ipc/fd.h"

namespace mkernel::base {

/// What a meter has seen. The longest of a kind is 0 while no slice took a millisecond of wall time; `over`
/// counts slices of more than SliceMeter::kLimit.
struct SliceTimes {
  std::chrono::nanoseconds longest{0};  ///< processor time
  std::uint64_t over_limit = 0;
  std::chrono::nanoseconds longest_wall{0};
  std::uint64_t wall_over_limit = 0;
  std::chrono::nanoseconds longest_asleep{0};
  std::uint64_t asleep_over_limit = 0;
  bool knows_sleep = false;  ///< false: the kernel keeps no time in line, and the two above say nothing
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
  /// The thread has waited for something to do, as it chose: the next slice begins now.
  void woke_up();

  SliceTimes times() const;

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
  /// The longest slice by one clock, and how many were over the limit.
  class Longest {
   public:
    void record(std::chrono::nanoseconds slice);
    std::chrono::nanoseconds longest() const {
      return std::chrono::nanoseconds(longest_.load(std::memory_order_relaxed));
    }
    std::uint64_t over_limit() const { return over_limit_.load(std::memory_order_relaxed); }

   private:
    std::atomic<std::int64_t> longest_{0};
    std::atomic<std::uint64_t> over_limit_{0};
  };
  /// What the thread's time went to.
  struct Spent {
    std::chrono::nanoseconds busy{0}, in_line{0};
  };

  void begin_slice();
  void look(std::uint64_t now_ticks);
  void learn_ticks(TimePoint now, std::uint64_t now_ticks);
  Spent read_spent(TimePoint now);

  std::uint64_t ticks_began_ = 0;  ///< time stamp counter when the slice began
  std::uint64_t short_ticks_ = 0;  ///< kShort in ticks; 0 until the length of a tick is known
  std::uint32_t unseen_ = 0;       ///< short slices since the last look
  double ns_per_tick_ = 0;
  TimePoint first_look_{};
  std::uint64_t first_ticks_ = 0;
  TimePoint last_look_{};
  TimePoint last_reading_{};
  Spent at_reading_;
  ipc::UniqueFd in_line_;  ///< the thread's schedstat; none: the kernel keeps no time in line
  Longest busy_, wall_, asleep_;
  std::atomic<bool> knows_sleep_{false};
};

}  // namespace mkernel::base

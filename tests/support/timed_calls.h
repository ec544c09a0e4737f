// How long calls took that may wait for something else: what a test whose wait gave up says besides.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "proto/abi/status.h"

namespace mkernel::test {

/// "9.98 s", from `begin` to `end`.
inline std::string seconds_text(std::chrono::steady_clock::time_point begin,
                                std::chrono::steady_clock::time_point end) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f s", std::chrono::duration<double>(end - begin).count());
  return text;
}

/// Any thread.
class TimedCalls {
 public:
  /// Makes the call, and returns what it returns. `what` names it.
  template <class Call>
  Status run(std::string what, const Call& call) {
    const std::uint64_t number = begin(std::move(what));
    Status result = call();
    end(number);
    return result;
  }

  /// One after the other: those under way, and of those that took long the last ones.
  std::string text() const {
    const std::lock_guard lock(mutex_);
    const Clock::time_point now = Clock::now();
    std::string all;
    for (const auto& [number, call] : under_way_)
      all += "; " + call.what + ": under way for " + seconds_text(call.begin, now);
    for (const Call& call : long_ones_)
      all += "; " + call.what + ": " + seconds_text(call.begin, call.end) + ", ended " +
             seconds_text(call.end, now) + " ago";
    return all.empty() ? "no call was long" : all.substr(2);
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Call {
    std::string what;
    Clock::time_point begin, end;
  };
  static constexpr std::chrono::milliseconds kLong{200};
  static constexpr std::size_t kMostKept = 24;

  std::uint64_t begin(std::string what) {
    const std::lock_guard lock(mutex_);
    under_way_[++last_] = {std::move(what), Clock::now(), {}};
    return last_;
  }
  void end(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    Call ended = std::move(under_way_.extract(number).mapped());
    ended.end = Clock::now();
    if (ended.end - ended.begin < kLong) return;
    if (long_ones_.size() == kMostKept) long_ones_.pop_front();
    long_ones_.push_back(std::move(ended));
  }

  mutable std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, Call> under_way_;
  std::deque<Call> long_ones_;
};

}  // namespace mkernel::test

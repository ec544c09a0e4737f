// How much may be done per second, with some of it at once after a pause.
#pragma once

#include <algorithm>
#include <chrono>

namespace mkernel::base {

/// Tokens come at a steady rate up to ten seconds' worth. They may be spent below zero: what has been done
/// has been done, and the debt is waited for. One thread.
class TokenBucket {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr double kBurstSeconds = 10;

  TokenBucket(double per_second, TimePoint now) : rate_(per_second), level_(burst()), last_(now) {}

  /// From now on; what is there stays, up to the new burst.
  void set_rate(double per_second, TimePoint now) {
    refill(now);
    rate_ = per_second;
    level_ = std::min(level_, burst());
  }
  void spend(double tokens, TimePoint now) {
    refill(now);
    level_ -= tokens;
  }
  /// How long until one token is there; zero when it is.
  std::chrono::nanoseconds wait(TimePoint now) {
    refill(now);
    if (level_ >= 1) return std::chrono::nanoseconds(0);
    return std::chrono::nanoseconds(static_cast<std::int64_t>((1 - level_) / rate_ * 1e9) + 1);
  }
  /// Of the burst, what is there: 1 = all of it, below 0 = debt.
  double share(TimePoint now) {
    refill(now);
    return level_ / burst();
  }

 private:
  double burst() const { return rate_ * kBurstSeconds; }
  void refill(TimePoint now) {
    const std::chrono::duration<double> passed = now - last_;
    level_ = std::min(level_ + passed.count() * rate_, burst());
    last_ = now;
  }

  double rate_;
  double level_;
  TimePoint last_;
};

}  // namespace mkernel::base

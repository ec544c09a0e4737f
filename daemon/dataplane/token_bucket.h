// A rate limit in bytes and in requests: what may be sent now.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "daemon/base/clock.h"
#include "daemon/dataplane/allowance.h"

namespace mkernel::dataplane {

/// One thread. Without limits unless it is made with some. What was not used is saved up for kBurst at most;
/// an overdraft (one huge put) is paid back before the next put.
class TokenBucket {
 public:
  TokenBucket() = default;
  /// Per second; 0 = no limit. `least`: what may be saved up however low the rates are.
  TokenBucket(std::uint64_t bytes, std::uint64_t requests, const Allowance& least)
      : bytes_(static_cast<double>(bytes), static_cast<double>(least.bytes)),
        requests_(static_cast<double>(requests), static_cast<double>(least.requests)) {}

  bool limited() const { return bytes_.rate > 0 || requests_.rate > 0; }

  void refill(base::TimePoint now) {
    const double seconds = filled_ ? std::chrono::duration<double>(now - last_).count() : kBurst.count();
    filled_ = true;
    last_ = now;
    bytes_.refill(seconds);
    requests_.refill(seconds);
  }
  Allowance left() const { return {bytes_.left(), requests_.left()}; }
  void charge(const Allowance& used) {
    bytes_.tokens -= static_cast<double>(used.bytes);
    requests_.tokens -= static_cast<double>(used.requests);
  }

 private:
  static constexpr std::chrono::duration<double> kBurst{0.02};

  struct Level {
    Level() = default;
    Level(double per_second, double least) : rate(per_second), most(std::max(least, kBurst.count() * rate)) {}

    void refill(double seconds) { tokens = std::min(most, tokens + rate * seconds); }
    std::int64_t left() const { return rate > 0 ? static_cast<std::int64_t>(tokens) : kUnlimited; }

    static constexpr std::int64_t kUnlimited = INT64_MAX / 2;
    double rate = 0;  ///< per second, 0 = no limit
    double most = 0;
    double tokens = 0;
  };

  Level bytes_;
  Level requests_;
  base::TimePoint last_{};
  bool filled_ = false;
};

}  // namespace mkernel::dataplane

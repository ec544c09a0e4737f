// What may still be sent, in bytes and in requests.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mkernel::dataplane {

/// Negative: an overdraft, to be paid back.
struct Allowance {
  std::int64_t bytes = 0;
  std::int64_t requests = 0;

  bool left() const { return bytes > 0 && requests > 0; }
  void charge(std::uint64_t more_bytes) {
    bytes -= static_cast<std::int64_t>(more_bytes);
    --requests;
  }
  Allowance& operator+=(const Allowance& more) {
    bytes += more.bytes;
    requests += more.requests;
    return *this;
  }
  Allowance& operator-=(const Allowance& less) {
    bytes -= less.bytes;
    requests -= less.requests;
    return *this;
  }
  friend Allowance operator-(Allowance one, const Allowance& other) { return one -= other; }
  friend bool operator==(const Allowance&, const Allowance&) = default;

  /// What is left of a turn is not carried over, so nobody saves up; debts are.
  void forfeit() {
    bytes = std::min<std::int64_t>(bytes, 0);
    requests = std::min<std::int64_t>(requests, 0);
  }
};

constexpr Allowance at_most(const Allowance& one, const Allowance& other) {
  return {std::min(one.bytes, other.bytes), std::min(one.requests, other.requests)};
}

}  // namespace mkernel::dataplane

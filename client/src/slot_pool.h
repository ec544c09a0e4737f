// Numbers below a limit, taken in consecutive runs: lanes and region indices of a group. Collective users
// take from the low end, so that every rank finds the same numbers whatever its own users took from the high
// end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace mkernel::client {

/// Not thread-safe.
class SlotPool {
 public:
  explicit SlotPool(std::uint32_t limit) : taken_(limit, false) {}

  /// The lowest run of `count` free numbers, or nothing.
  std::optional<std::uint32_t> take_low(std::uint32_t count) {
    for (std::uint32_t first = 0; first + count <= size(); ++first) {
      if (is_free(first, count)) return mark(first, count);
    }
    return std::nullopt;
  }

  /// The highest such run.
  std::optional<std::uint32_t> take_high(std::uint32_t count) {
    for (std::uint32_t end = size(); end >= count; --end) {
      if (is_free(end - count, count)) return mark(end - count, count);
      if (end == 0) break;
    }
    return std::nullopt;
  }

  void give(std::uint32_t first, std::uint32_t count) { std::fill_n(taken_.begin() + first, count, false); }

  std::uint32_t size() const { return static_cast<std::uint32_t>(taken_.size()); }
  std::uint32_t free_count() const {
    return static_cast<std::uint32_t>(std::count(taken_.begin(), taken_.end(), false));
  }

 private:
  bool is_free(std::uint32_t first, std::uint32_t count) const {
    return std::none_of(taken_.begin() + first, taken_.begin() + first + count,
                        [](bool taken) { return taken; });
  }
  std::uint32_t mark(std::uint32_t first, std::uint32_t count) {
    std::fill_n(taken_.begin() + first, count, true);
    return first;
  }

  std::vector<bool> taken_;
};

}  // namespace mkernel::client

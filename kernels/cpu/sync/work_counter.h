// Work that the threads of a launch take as they have time.
#pragma once

#include <atomic>
#include <cstdint>

namespace mkernel::kernels {

/// Items 0 .. all - 1, each taken by one thread, in order. One object per launch.
class WorkCounter {
 public:
  explicit WorkCounter(std::int32_t all) : all_(all) {}
  /// The next item; `all` when there are no more.
  std::int32_t next() {
    const std::int32_t item = next_.fetch_add(1, std::memory_order_relaxed);
    return item < all_ ? item : all_;
  }
  std::int32_t all() const { return all_; }

 private:
  const std::int32_t all_;
  std::atomic<std::int32_t> next_{0};
};

}  // namespace mkernel::kernels

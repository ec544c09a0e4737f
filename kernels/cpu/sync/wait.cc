#include "kernels/cpu/sync/wait.h"

#include <thread>

#include "mkernel/trace.h"

namespace mkernel::kernels {
namespace {

constexpr std::uint32_t kSpins = 64;     // about 3 us: the other side runs on another core right now
constexpr std::uint32_t kYields = 64;    // the other side may need this core
constexpr std::uint32_t kSleepStep = 5;  // us; grows by one step per sleep
constexpr std::uint32_t kLongestSleep = 200;

}  // namespace

Status BoundedWait::pause(const WaitSite& site, std::uint64_t expected, std::uint64_t seen) {
  ++rounds_;
  if (rounds_ <= kSpins) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    return {};
  }
  MK_RETURN_IF_ERROR(check(site, expected, seen));
  if (rounds_ <= kSpins + kYields) {
    std::this_thread::yield();
  } else {
    const std::uint32_t step = kSleepStep * (rounds_ - kSpins - kYields);
    std::this_thread::sleep_for(std::chrono::microseconds(step < kLongestSleep ? step : kLongestSleep));
  }
  return {};
}

void BoundedWait::record(const WaitSite& site) const {
  if (scope_.trace == nullptr) return;
  scope_.trace->add({TraceEvent::Kind::kWait, current_track(), site.tag, site.peer, trace_ns(begin_),
                     trace_ns(std::chrono::steady_clock::now())});
}

Status BoundedWait::check(const WaitSite& site, std::uint64_t expected, std::uint64_t seen) {
  MK_RETURN_IF_ERROR(failure_of(scope_.group, scope_.session, site, scope_.rank));
  if (scope_.stop != nullptr && scope_.stop->load(std::memory_order_acquire)) {
    return cancelled(site, scope_.rank);
  }
  const auto now = std::chrono::steady_clock::now();
  if (begin_.time_since_epoch().count() == 0) begin_ = now;
  if (now - begin_ < scope_.deadline) return {};
  return expired(site, scope_.rank, expected, seen, now - begin_);
}

}  // namespace mkernel::kernels

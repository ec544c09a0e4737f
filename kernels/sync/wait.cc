#include "kernels/sync/wait.h"

#include <cstring>
#include <string>
#include <string_view>
#include <thread>

namespace mkernel::kernels {
namespace {

constexpr std::uint32_t kSpins = 64;     // about 3 us: the other side runs on another core right now
constexpr std::uint32_t kYields = 64;    // the other side may need this core
constexpr std::uint32_t kSleepStep = 5;  // us; grows by one step per sleep
constexpr std::uint32_t kLongestSleep = 200;

std::uint32_t load_abort(const std::uint32_t& word) {
  return std::atomic_ref<std::uint32_t>(const_cast<std::uint32_t&>(word)).load(std::memory_order_acquire);
}

template <std::size_t N>
std::string_view text_of(const char (&field)[N]) {
  return {field, strnlen(field, N)};
}

std::string describe(const WaitSite& site, std::uint32_t rank) {
  std::string line = "rank " + std::to_string(rank) + " " + site.role + ": " + site.tag;
  if (site.peer >= 0) line += " of rank " + std::to_string(site.peer);
  if (site.via >= 0) line += " through rank " + std::to_string(site.via);
  if (site.lane >= 0) line += " lane " + std::to_string(site.lane);
  return line;
}

std::string counts(std::uint64_t expected, std::uint64_t seen) {
  return "expected " + std::to_string(expected) + ", seen " + std::to_string(seen);
}

/// The status that the failure record tells, in the words of the rank that waited.
Status failure(const char* whose, std::uint32_t code, const abi::FailureRecord& record,
               const std::string& waiting) {
  std::string text = std::string(whose) + " failed: " + std::string(text_of(record.text));
  if (record.culprit >= 0) text += " (culprit: rank " + std::to_string(record.culprit) + ")";
  if (record.node[0] != 0) text += " (node " + std::string(text_of(record.node)) + ")";
  return {static_cast<StatusCode>(code), text + "; while " + waiting};
}

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

Status BoundedWait::check(const WaitSite& site, std::uint64_t expected, std::uint64_t seen) {
  if (scope_.group != nullptr) {
    if (const std::uint32_t code = load_abort(scope_.group->abort); code != 0) {
      return failure("group", code, scope_.group->failure, describe(site, scope_.rank));
    }
  }
  if (scope_.session != nullptr) {
    if (const std::uint32_t code = load_abort(scope_.session->abort); code != 0) {
      return failure("session", code, scope_.session->failure, describe(site, scope_.rank));
    }
  }
  if (scope_.stop != nullptr && scope_.stop->load(std::memory_order_acquire)) {
    return {StatusCode::kCancelled, describe(site, scope_.rank) + ": another role of the launch failed"};
  }
  const auto now = std::chrono::steady_clock::now();
  if (begin_.time_since_epoch().count() == 0) begin_ = now;
  if (now - begin_ < scope_.deadline) return {};
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  std::string waited = std::to_string(seconds);
  waited.resize(waited.find('.') + 2);
  return {StatusCode::kDeadlineExceeded,
          describe(site, scope_.rank) + ": " + counts(expected, seen) + " after " + waited + " s"};
}

}  // namespace mkernel::kernels

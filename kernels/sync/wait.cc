#include "kernels/sync/wait.h"

#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include "kernels/sync/launch_control.h"
#include "kernels/sync/track.h"
#include "mkernel/trace.h"

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

Status failure_of(const abi::GroupSegment* group, const abi::SessionSegment* session, const WaitSite& site,
                  std::uint32_t rank) {
  if (group != nullptr) {
    if (const std::uint32_t code = load_abort(group->abort); code != 0) {
      return failure("group", code, group->failure, describe(site, rank));
    }
  }
  if (session != nullptr) {
    if (const std::uint32_t code = load_abort(session->abort); code != 0) {
      return failure("session", code, session->failure, describe(site, rank));
    }
  }
  return {};
}

Status check_deadline(std::chrono::milliseconds deadline) {
  constexpr std::int64_t kMost = kLongestDeadlineNs / 1'000'000;
  if (deadline.count() >= 1 && deadline.count() <= kMost) return {};
  return {StatusCode::kInvalidArgument,
          "deadline = " + std::to_string(deadline.count()) + " ms, must be 1.." + std::to_string(kMost)};
}

Status expired(const WaitSite& site, std::uint32_t rank, std::uint64_t expected, std::uint64_t seen,
               std::chrono::duration<double> waited) {
  std::string seconds = std::to_string(waited.count());
  seconds.resize(seconds.find('.') + 2);
  return {StatusCode::kDeadlineExceeded,
          describe(site, rank) + ": " + counts(expected, seen) + " after " + seconds + " s"};
}

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
    return {StatusCode::kCancelled, describe(site, scope_.rank) + ": another role of the launch failed"};
  }
  const auto now = std::chrono::steady_clock::now();
  if (begin_.time_since_epoch().count() == 0) begin_ = now;
  if (now - begin_ < scope_.deadline) return {};
  return expired(site, scope_.rank, expected, seen, now - begin_);
}

}  // namespace mkernel::kernels

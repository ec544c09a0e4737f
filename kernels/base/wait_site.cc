#include "kernels/base/wait_site.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace mkernel::kernels {
namespace {

std::uint32_t load_word(const std::uint32_t& word) {
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

/// Why nothing more comes of `peer`; OK while it is there. What it had put before has arrived by then.
Status absence_of(const abi::GroupSegment& group, std::int64_t peer, const std::string& waiting) {
  if (peer < 0 || peer >= static_cast<std::int64_t>(group.world_size)) return {};
  const auto& state = reinterpret_cast<const abi::RankState*>(reinterpret_cast<const std::byte*>(&group) +
                                                              group.states_offset)[peer];
  const auto presence = static_cast<abi::Presence>(load_word(state.presence));
  if (presence == abi::Presence::kHere) return {};
  if (presence == abi::Presence::kLost)
    return failure("group", load_word(group.ended), group.failure, waiting);
  return {StatusCode::kUnavailable, "rank " + std::to_string(peer) + " has left the group; while " + waiting};
}

}  // namespace

Status failure_of(const abi::GroupSegment* group, const abi::SessionSegment* session, const WaitSite& site,
                  std::uint32_t rank) {
  if (group != nullptr) {
    if (const std::uint32_t code = load_word(group->abort); code != 0) {
      return failure("group", code, group->failure, describe(site, rank));
    }
    for (const std::int64_t needed : {site.peer, site.via}) {
      if (site.of_peer) MK_RETURN_IF_ERROR(absence_of(*group, needed, describe(site, rank)));
    }
  }
  if (session != nullptr) {
    if (const std::uint32_t code = load_word(session->abort); code != 0) {
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

Status cancelled(const WaitSite& site, std::uint32_t rank) {
  return {StatusCode::kCancelled, describe(site, rank) + ": another role of the launch failed"};
}

}  // namespace mkernel::kernels

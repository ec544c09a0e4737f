// Who waits for what, and how a wait that fails says so: the same words for both executors.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "kernels/base/deadline.h"
#include "proto/abi/region_map.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// Who waits for what: read only when a wait fails, so building one costs nothing.
struct WaitSite {
  const char* role = "";   ///< "inter_recv"
  const char* tag = "";    ///< what the word counts: "arrivals", "ring space"
  std::int64_t peer = -1;  ///< rank that has to act, -1 when it is none
  std::int64_t lane = -1;  ///< lane of the channel, -1 when it is none
  std::int64_t via = -1;   ///< rank that hands on what `peer` sends, -1 when it comes directly
  bool of_peer = true;     ///< `peer` or `via` has to do something; not so where the daemon alone has to
};

/// Refuses deadlines of a wait that are none (below 1 ms) or longer than any part of a launch is made for
/// (kLongestDeadlineNs): kInvalidArgument naming value and limit.
Status check_deadline(std::chrono::milliseconds deadline);

/// Why the wait of `rank` has to end: the group or the session has failed, or the rank that it waits for is
/// gone. OK while it may go on. Null pointers are not looked at.
Status failure_of(const abi::GroupSegment* group, const abi::SessionSegment* session, const WaitSite& site,
                  std::uint32_t rank);

/// kDeadlineExceeded: who waited for whom, for how long, and what came instead.
Status expired(const WaitSite& site, std::uint32_t rank, std::uint64_t expected, std::uint64_t seen,
               std::chrono::duration<double> waited);

/// kCancelled: who waited for what when another role of the same launch failed.
Status cancelled(const WaitSite& site, std::uint32_t rank);

/// Acquire load of a word that another thread, process or the NIC writes.
inline std::uint64_t load_acquire(const std::uint64_t& word) {
  return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
}

}  // namespace mkernel::kernels

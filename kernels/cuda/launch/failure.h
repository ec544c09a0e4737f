// What launches of the cuda executor left behind, as a status.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/views.h"
#include "kernels/base/wait_site.h"
#include "kernels/cuda/sync/launch_control.h"
#include "kernels/plan/topology.h"
#include "proto/abi/region_map.h"

namespace mkernel::kernels {

/// Why a launch of `rank` found at its end that another one had ended since it began.
inline Status ran_at_the_same_time(const LaunchControl& control, std::uint32_t rank) {
  const bool of_operation = control.site.tag == DeviceTag::kEpoch;
  return {StatusCode::kFailedPrecondition,
          "rank " + std::to_string(rank) + ": two launches " +
              (of_operation ? "of the operation" : "with the shared workspace of the group") +
              " ran at the same time: when this one began " + std::to_string(control.expected) +
              " had ended, when it ended " + std::to_string(control.seen) +
              "; the results of both are void. Launches of a group must follow each other: queue them on one "
              "stream, or let each stream wait for the launch before (cudaStreamWaitEvent)"};
}

/// OK, or why the launches of `control` (copied from the device) gave up: that two ran at the same time, why
/// group or session failed, else which wait of `rank` ran into its deadline. `via`: WaitSite's, for that
/// wait.
inline Status failure_of_launch(const LaunchControl& control, const abi::GroupSegment* group,
                                const abi::SessionSegment* session, std::uint32_t rank,
                                std::int64_t via = -1) {
  if (control.abort == 0) return {};
  if (control.site.tag == DeviceTag::kEpoch || control.site.tag == DeviceTag::kTurn)
    return ran_at_the_same_time(control, rank);
  const WaitSite site{.role = name_of(control.site.role),
                      .tag = name_of(control.site.tag),
                      .peer = control.site.peer,
                      .lane = counts_lane(control.site.tag) ? std::int64_t{control.site.index} : -1,
                      .via = via};
  MK_RETURN_IF_ERROR(failure_of(group, session, site, rank));
  return expired(site, rank, control.expected, control.seen,
                 std::chrono::duration<double>(std::chrono::nanoseconds(control.waited_ns)));
}

/// failure_of_launch() for a rank of `topology`. Chunks and tiles of other nodes are handed on by a rank of
/// this one, which the text names. A launch that nobody answers may not have begun at all on the other GPU:
/// the text says that too.
inline Status status_of_launch(const LaunchControl& control, const GroupView& group, const Topology& topology,
                               std::uint32_t rank) {
  const DeviceWaitSite& site = control.site;
  const bool of_launch = site.tag == DeviceTag::kChunkReady || site.tag == DeviceTag::kTileReady;
  const bool of_another = of_launch && site.peer >= 0 && static_cast<std::uint32_t>(site.peer) != rank;
  const std::int64_t via = of_another ? topology.via(static_cast<std::uint32_t>(site.peer), rank) : -1;
  const Status failed = failure_of_launch(control, group.segment, group.session, rank, via);
  if (!of_another || failed.code() != StatusCode::kDeadlineExceeded) return failed;
  return {failed.code(), failed.text() +
                             " (that rank is late, or its launch waits for room: it needs all of its "
                             "multiprocessors at once, beside other kernels give it fewer by `sms`)"};
}

}  // namespace mkernel::kernels

// What the launches of an operation on the cuda executor left behind, as a status.
#pragma once

#include <cstdint>

#include "kernels/base/views.h"
#include "kernels/cuda/launch/failure.h"
#include "kernels/cuda/sync/launch_control.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {

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

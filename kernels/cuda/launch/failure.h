// What a launch of the cuda executor left behind, as a status.
#pragma once

#include <cstdint>

#include "kernels/base/wait_site.h"
#include "kernels/cuda/sync/launch_control.h"
#include "proto/abi/region_map.h"

namespace mkernel::kernels {

/// OK, or why the launches of `control` (copied from the device) gave up: why group or session failed, else
/// which wait of `rank` ran into its deadline. `via`: WaitSite's, for that wait.
inline Status failure_of_launch(const LaunchControl& control, const abi::GroupSegment* group,
                                const abi::SessionSegment* session, std::uint32_t rank,
                                std::int64_t via = -1) {
  if (control.abort == 0) return {};
  const WaitSite site{.role = name_of(control.site.role),
                      .tag = name_of(control.site.tag),
                      .peer = control.site.peer,
                      .lane = counts_lane(control.site.tag) ? std::int64_t{control.site.index} : -1,
                      .via = via};
  MK_RETURN_IF_ERROR(failure_of(group, session, site, rank));
  return expired(site, rank, control.expected, control.seen,
                 std::chrono::duration<double>(std::chrono::nanoseconds(control.waited_ns)));
}

}  // namespace mkernel::kernels

// Whether an operation may be bound, and launched: what both executors ask.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/types.h"
#include "kernels/base/views.h"
#include "kernels/plan/topology.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// kInvalidArgument when a workspace is too small or not mapped for every rank of the node, or when the
/// group does not have the lanes from `first_lane` on, each naming what there is and what is needed. `name`
/// begins the error.
Status check_room(const std::string& name, const Requirements& needs, const Topology& topology,
                  const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
                  std::uint32_t first_lane);

/// OK when an operation may be launched: it is `bound`, and no launch has failed. After a failed one the
/// counts of the ranks no longer agree. kFailedPrecondition otherwise; `name` begins the error.
Status check_ready(const std::string& name, bool bound, const Status& failed);

/// kFailedPrecondition of an operation whose lent workspace another one's failed launch has stopped.
Status stopped_by_another(const std::string& name);

/// kFailedPrecondition: a launch of operation `name` began while one of `whose` was under way.
Status another_is_running(const std::string& name, const std::string& whose);

}  // namespace mkernel::kernels

// Which attributes a change of a queue pair's state needs and takes, as the kernel and the EFA driver check.
#pragma once

#include <infiniband/verbs.h>

namespace mkernel::test::nic {

/// 0, or EINVAL: no such change of state, an attribute missing, or one too many.
int check_attributes(bool srd, ibv_qp_state from, ibv_qp_state to, int mask);

}  // namespace mkernel::test::nic

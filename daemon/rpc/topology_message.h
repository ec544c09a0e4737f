// The node's topology and placement as a message of the control service.
#pragma once

#include "daemon/topology/placement.h"
#include "mkernel/v1/control.pb.h"

namespace mkernel::rpc {

void fill(const topology::Node& node, const topology::Placement& placement, v1::Topology& to);

}  // namespace mkernel::rpc

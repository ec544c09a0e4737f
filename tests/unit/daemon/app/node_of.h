// The node that tests of its rails choose from.
#pragma once

#include <string>
#include <vector>

#include "daemon/topology/node.h"

namespace mkernel::app {

/// A machine of one NUMA node without GPUs.
inline topology::Node node_of(const std::vector<topology::RdmaDevice>& devices,
                              const std::vector<std::string>& chosen = {}) {
  return topology::make_node({}, devices, chosen);
}

}  // namespace mkernel::app

// Draws the topology of a node for people.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>

namespace mkernel::mkctl {

/// `topology`: v1::Topology as JSON. Three parts: the tree of NUMA nodes, PCIe bridges, GPUs and ports; the
/// distance of every GPU to every port; which rails each GPU uses, and why, and which ports are none.
void print_topology(std::ostream& out, const nlohmann::ordered_json& topology);

}  // namespace mkernel::mkctl

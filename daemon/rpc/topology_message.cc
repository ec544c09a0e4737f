#include "daemon/rpc/topology_message.h"

#include <string>
#include <vector>

namespace mkernel::rpc {
namespace {

/// {0, 1, 2, 5} -> "0-2,5"; the numbers ascend.
std::string ranges(const std::vector<std::uint32_t>& numbers) {
  std::string text;
  for (std::size_t first = 0, last; first < numbers.size(); first = last + 1) {
    for (last = first; last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1;) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(numbers[first]);
    if (last > first) text += "-" + std::to_string(numbers[last]);
  }
  return text;
}

void fill(const topology::NumaNode& from, v1::NumaNode& to) {
  to.set_index(from.index);
  to.set_package(from.package);
  to.set_cpus(ranges(from.cpus));
}

void fill(const topology::Gpu& gpu, const topology::GpuRails& rails, const topology::Node& node,
          v1::TopologyGpu& to) {
  to.set_index(gpu.index);
  to.set_pci_address(gpu.pci_address);
  to.set_model(gpu.model);
  to.set_numa_node(gpu.place.numa_node);
  for (const std::string& bridge : gpu.place.bridges) to.add_bridges(bridge);
  for (const topology::NicPort& port : node.ports)
    to.add_distances(topology::name_of(topology::distance(gpu.place, port.place)));
  for (const std::size_t rail : rails.rails) to.add_rails(static_cast<std::uint32_t>(rail));
  to.set_distance(rails.rails.empty() ? "" : topology::name_of(rails.distance));
  to.set_why(rails.why);
}

void fill(const topology::NicPort& from, v1::TopologyPort& to) {
  to.set_name(from.name());
  to.set_pci_address(from.pci_address);
  to.set_driver(from.driver);
  to.set_state(from.state);
  to.set_gbps(from.gbps);
  to.set_numa_node(from.place.numa_node);
  for (const std::string& bridge : from.place.bridges) to.add_bridges(bridge);
  to.set_rail(-1);
}

}  // namespace

void fill(const topology::Node& node, const topology::Placement& placement, v1::Topology& to) {
  for (const topology::NumaNode& numa : node.numa_nodes) fill(numa, *to.add_numa_nodes());
  for (std::size_t gpu = 0; gpu < node.gpus.size(); ++gpu)
    fill(node.gpus[gpu], placement.gpus[gpu], node, *to.add_gpus());
  for (const topology::NicPort& port : node.ports) fill(port, *to.add_ports());
  for (std::size_t rail = 0; rail < placement.rails.size(); ++rail) {
    v1::TopologyPort& port = *to.mutable_ports(static_cast<int>(placement.rails[rail].port));
    port.set_rail(static_cast<std::int32_t>(rail));
    port.set_proxy_cpus(ranges(placement.rails[rail].cpus));
  }
  for (const topology::SparePort& spare : placement.spare)
    to.mutable_ports(static_cast<int>(spare.port))->set_not_used(spare.why);
  for (const std::string& name : node.absent) to.add_absent(name);
}

}  // namespace mkernel::rpc

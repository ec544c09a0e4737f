#include "daemon/topology/node.h"

#include <algorithm>
#include <tuple>

namespace mkernel::topology {
namespace {

constexpr std::uint16_t kNvidia = 0x10de, kVga = 0x0300, k3dController = 0x0302;

bool is_gpu(const PciDevice& device) {
  return device.vendor == kNvidia && (device.device_class == kVga || device.device_class == k3dController);
}

PciPlace place_of(const Machine& machine, const std::string& pci_address, int numa_node) {
  PciPlace place;
  const auto found = std::find_if(machine.devices.begin(), machine.devices.end(),
                                  [&](const PciDevice& d) { return d.address == pci_address; });
  if (found != machine.devices.end()) place = found->place;
  if (place.numa_node < 0) place.numa_node = numa_node;
  if (place.numa_node < 0 && machine.numa_nodes.size() == 1)
    place.numa_node = machine.numa_nodes.front().index;
  return place;
}

std::vector<NicPort> all_ports(const Machine& machine, const std::vector<RdmaDevice>& devices) {
  std::vector<NicPort> ports;
  for (const RdmaDevice& device : devices) {
    for (const RdmaPort& port : device.ports) {
      ports.push_back({device.name, port.number, device.pci_address, device.driver, port.state, port.gbps,
                       place_of(machine, device.pci_address, device.numa_node), not_usable(device, port)});
    }
  }
  // By address, so that equal nodes number their rails alike whatever they call their devices.
  std::stable_sort(ports.begin(), ports.end(), [](const NicPort& a, const NicPort& b) {
    const auto key = [](const NicPort& port) {
      return std::tuple(port.pci_address.empty(), port.pci_address.size(), port.pci_address);
    };
    return key(a) < key(b);
  });
  return ports;
}

/// Brings the chosen ports to the front, in their order, and says of the others that they were not chosen.
void choose(Node& node, const std::vector<std::string>& chosen) {
  auto next = node.ports.begin();
  for (const std::string& name : chosen) {
    const auto named = [&](const NicPort& port) { return name == port.device || name == port.name(); };
    const auto after = std::stable_partition(next, node.ports.end(), named);
    if (std::none_of(node.ports.begin(), after, named)) node.absent.push_back(name);
    next = after;
  }
  for (; next != node.ports.end(); ++next) next->not_usable = "topology.nics does not name it";
}

}  // namespace

Node make_node(const Machine& machine, const std::vector<RdmaDevice>& devices,
               const std::vector<std::string>& chosen) {
  Node node{.numa_nodes = machine.numa_nodes, .ports = all_ports(machine, devices)};
  for (const PciDevice& device : machine.devices) {
    if (!is_gpu(device)) continue;
    node.gpus.push_back({static_cast<std::uint32_t>(node.gpus.size()), device.address, device.model,
                         place_of(machine, device.address, -1)});
  }
  if (!chosen.empty()) choose(node, chosen);
  return node;
}

}  // namespace mkernel::topology

#include "daemon/topology/machine.h"

#include <hwloc.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace mkernel::topology {
namespace {

using Topology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

std::string address_of(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
  char text[32];
  std::snprintf(text, sizeof(text), "%04x:%02x:%02x.%01x", pci.domain, pci.bus, pci.dev, pci.func);
  return text;
}

/// As the folder in sysfs is called: "pci0000:15" for a host bridge, the address for any other.
std::string bridge_name(const hwloc_obj_attr_u::hwloc_bridge_attr_s& bridge) {
  if (bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI) return address_of(bridge.upstream.pci);
  char text[32];
  std::snprintf(text, sizeof(text), "pci%04x:%02x", bridge.downstream.pci.domain,
                bridge.downstream.pci.secondary_bus);
  return text;
}

PciPlace place_of(hwloc_topology_t topology, hwloc_obj_t device) {
  PciPlace place;
  for (hwloc_obj_t up = device->parent; up != nullptr && up->type == HWLOC_OBJ_BRIDGE; up = up->parent)
    place.bridges.insert(place.bridges.begin(), bridge_name(up->attr->bridge));
  const hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology, device);
  // A device whose place nobody says hangs from the whole machine.
  if (near != nullptr && near->nodeset != nullptr && hwloc_bitmap_weight(near->nodeset) == 1)
    place.numa_node = hwloc_bitmap_first(near->nodeset);
  return place;
}

int package_of(hwloc_topology_t topology, hwloc_obj_t numa_node) {
  const hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, numa_node);
  return package == nullptr ? -1 : static_cast<int>(package->os_index);
}

Machine read(hwloc_topology_t topology) {
  Machine machine;
  for (hwloc_obj_t at = nullptr; (at = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, at));) {
    NumaNode node{.index = static_cast<int>(at->os_index), .package = package_of(topology, at)};
    for (int cpu = hwloc_bitmap_first(at->cpuset); cpu >= 0; cpu = hwloc_bitmap_next(at->cpuset, cpu))
      node.cpus.push_back(static_cast<std::uint32_t>(cpu));
    machine.numa_nodes.push_back(std::move(node));
  }
  for (hwloc_obj_t at = nullptr; (at = hwloc_get_next_pcidev(topology, at));) {
    const auto& pci = at->attr->pcidev;
    const char* model = hwloc_obj_get_info_by_name(at, "PCIDevice");
    machine.devices.push_back({address_of(pci), pci.vendor_id, pci.device_id, pci.class_id,
                               model == nullptr ? "" : model, place_of(topology, at)});
  }
  const auto by_index = [](const NumaNode& a, const NumaNode& b) { return a.index < b.index; };
  // Wider domains come last, so that equal widths compare as numbers.
  const auto by_address = [](const PciDevice& a, const PciDevice& b) {
    return std::pair(a.address.size(), a.address) < std::pair(b.address.size(), b.address);
  };
  std::sort(machine.numa_nodes.begin(), machine.numa_nodes.end(), by_index);
  std::sort(machine.devices.begin(), machine.devices.end(), by_address);
  return machine;
}

Result<Machine> load(const std::string* xml) {
  hwloc_topology_t handle = nullptr;
  if (hwloc_topology_init(&handle) != 0) return Status(StatusCode::kInternal, "hwloc cannot start");
  const Topology topology(handle, hwloc_topology_destroy);
  // No operating system devices: hwloc then has no reason to open a GPU's.
  hwloc_topology_set_all_types_filter(handle, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  hwloc_topology_set_type_filter(handle, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  hwloc_topology_set_type_filter(handle, HWLOC_OBJ_BRIDGE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  hwloc_topology_set_type_filter(handle, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_type_filter(handle, HWLOC_OBJ_OS_DEVICE, HWLOC_TYPE_FILTER_KEEP_NONE);
  // The length counts the terminating zero.
  if (xml != nullptr &&
      hwloc_topology_set_xmlbuffer(handle, xml->c_str(), static_cast<int>(xml->size() + 1)) != 0)
    return Status(StatusCode::kInvalidArgument, "this is no topology as lstopo writes it");
  if (hwloc_topology_load(handle) != 0) {
    return Status(xml == nullptr ? StatusCode::kInternal : StatusCode::kInvalidArgument,
                  std::string("hwloc cannot read the machine: ") + std::strerror(errno));
  }
  return read(handle);
}

}  // namespace

Result<Machine> this_machine() {
  return load(nullptr);
}

Result<Machine> machine_from_xml(const std::string& xml) {
  return load(&xml);
}

}  // namespace mkernel::topology

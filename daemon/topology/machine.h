// The machine below the devices: NUMA nodes, their CPUs, and where on PCIe everything sits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/topology/distance.h"
#include "proto/abi/status.h"

namespace mkernel::topology {

struct NumaNode {
  int index = 0;
  int package = -1;                 ///< CPU socket, -1 = unknown
  std::vector<std::uint32_t> cpus;  ///< those that this process may use
};

struct PciDevice {
  std::string address;  ///< "0000:1b:00.0"
  std::uint16_t vendor = 0;
  std::uint16_t device = 0;
  std::uint16_t device_class = 0;  ///< base class and subclass, 0x0302 = 3D controller
  std::string model;               ///< out of the PCI ids of this machine; empty where it knows none
  PciPlace place;
};

struct Machine {
  std::vector<NumaNode> numa_nodes;  ///< by index
  std::vector<PciDevice> devices;    ///< GPUs, NICs, disks: what has a class that matters; by address
};

/// The machine this runs on, by hwloc. No device is opened. Tens of milliseconds; any thread.
/// Errors: kInternal when hwloc cannot read the system, with its reason.
Result<Machine> this_machine();

/// The same out of what `lstopo machine.xml` wrote elsewhere. Errors: kInvalidArgument.
Result<Machine> machine_from_xml(const std::string& xml);

}  // namespace mkernel::topology

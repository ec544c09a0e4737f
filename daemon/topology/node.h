// GPUs and NIC ports of this node, and where each sits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/topology/machine.h"
#include "daemon/topology/rdma_device.h"

namespace mkernel::topology {

struct Gpu {
  std::uint32_t index =
      0;  ///< in the order of PCI addresses, as nvidia-smi and CUDA_DEVICE_ORDER=PCI_BUS_ID count
  std::string pci_address;
  std::string model;
  PciPlace place;
};

struct NicPort {
  std::string device;  ///< "mlx5_0"
  std::uint32_t port = 1;
  std::string pci_address;  ///< empty for soft devices
  std::string driver;
  std::string state;  ///< "ACTIVE", "DOWN", ...
  double gbps = 0;
  PciPlace place;
  std::string not_usable;  ///< why, and what to do; empty: usable

  std::string name() const { return port_name(device, port); }
};

struct Node {
  std::vector<NumaNode> numa_nodes;
  std::vector<Gpu> gpus;  ///< by index
  std::vector<NicPort>
      ports;  ///< in the order of the names that were chosen, else of PCI addresses; soft devices last
  std::vector<std::string> absent;  ///< names that were chosen and that this node does not have
};

/// Brings the machine and its RDMA devices together. `chosen`: the ports that may be used, "mlx5_0" (all
/// ports of the device) or "mlx5_0:1", in the order wanted; empty: every one. A device that nobody places
/// lies on the NUMA node that its driver says, or on the only one there is.
Node make_node(const Machine& machine, const std::vector<RdmaDevice>& devices,
               const std::vector<std::string>& chosen);

}  // namespace mkernel::topology

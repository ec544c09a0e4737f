// Where a device sits on PCIe, and how far two devices are from each other.
#pragma once

#include <string>
#include <vector>

namespace mkernel::topology {

struct PciPlace {
  int numa_node = -1;  ///< -1 = unknown
  /// From the host bridge ("pci0000:15") down to the port that the device hangs from ("0000:17:00.0"). Empty:
  /// no PCI device, or nobody says where.
  std::vector<std::string> bridges;
};

/// What lies between two devices, nearest first; the words and their meaning are those of `nvidia-smi topo`.
enum class Distance {
  kPix,   ///< at most one PCIe bridge on the way from either: one switch
  kPxb,   ///< several bridges, but no host bridge
  kPhb,   ///< the host bridge that both hang from
  kNode,  ///< the interconnect between the host bridges of one NUMA node
  kSys,   ///< the interconnect between NUMA nodes, or nobody says where one of them is
};

/// "PIX", "PXB", "PHB", "NODE", "SYS".
const char* name_of(Distance distance);

/// The same in words: "same PCIe switch".
const char* words_of(Distance distance);

Distance distance(const PciPlace& a, const PciPlace& b);

}  // namespace mkernel::topology

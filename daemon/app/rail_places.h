// Where the rails of a node lie: which NIC port each has for its own, which CPUs and which GPUs are near it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/topology/node.h"

namespace mkernel::app {

struct RailPlace {
  std::string port;                 ///< "mlx5_0:1": the one it uses unless that fails
  std::vector<std::uint32_t> cpus;  ///< of the port's NUMA node, for its proxy thread; empty: unknown
};

struct RailPlaces {
  std::vector<RailPlace> rails;  ///< none where the transport has no NICs
  /// By abi::pci_address() of a GPU: the rails whose ports topology::place() gives to it, bit r: rail r. A
  /// GPU is missing here when none of its ports is a rail's.
  std::map<std::uint64_t, std::uint32_t> of_gpu;
  /// The same, and 0 for a GPU that is missing.
  std::uint32_t near(std::uint64_t gpu) const {
    const auto found = of_gpu.find(gpu);
    return found == of_gpu.end() ? 0 : found->second;
  }
};

/// `rails` rails that have these ports (names of ports of `node`, at least one) for their own; with more
/// rails than ports they begin again with the first.
RailPlaces places_of(const topology::Node& node, const std::vector<std::string>& ports, std::uint32_t rails);

}  // namespace mkernel::app

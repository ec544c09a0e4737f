#include "daemon/app/rail_places.h"

#include <algorithm>
#include <cstdio>

#include "daemon/topology/placement.h"
#include "proto/abi/messages.h"

namespace mkernel::app {
namespace {

/// "0000:1b:00.0" as a number; 0 for anything else.
std::uint64_t number_of(const std::string& pci_address) {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  const int read = std::sscanf(pci_address.c_str(), "%x:%x:%x.%x", &domain, &bus, &device, &function);
  return read == 4 ? abi::pci_address(domain, bus, device, function) : 0;
}

}  // namespace

RailPlaces places_of(const topology::Node& node, const std::vector<std::string>& ports, std::uint32_t rails) {
  const topology::Placement placement = topology::place(node);
  RailPlaces places;
  for (std::uint32_t rail = 0; rail < rails; ++rail) {
    RailPlace& place = places.rails.emplace_back();
    place.port = ports[rail % ports.size()];
    // The placement has rails of its own, also for ports that turned out to be none.
    std::size_t placed = 0;
    while (node.ports[placement.rails[placed].port].name() != place.port) ++placed;
    place.cpus = placement.rails[placed].cpus;
    for (const topology::GpuRails& gpu : placement.gpus) {
      const bool near = std::find(gpu.rails.begin(), gpu.rails.end(), placed) != gpu.rails.end();
      if (near) places.of_gpu[number_of(node.gpus[gpu.gpu].pci_address)] |= std::uint32_t{1} << rail;
    }
  }
  places.of_gpu.erase(0);
  return places;
}

}  // namespace mkernel::app

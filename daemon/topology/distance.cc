#include "daemon/topology/distance.h"

#include <algorithm>

namespace mkernel::topology {

const char* name_of(Distance distance) {
  switch (distance) {
    case Distance::kPix: return "PIX";
    case Distance::kPxb: return "PXB";
    case Distance::kPhb: return "PHB";
    case Distance::kNode: return "NODE";
    case Distance::kSys: break;
  }
  return "SYS";
}

const char* words_of(Distance distance) {
  switch (distance) {
    case Distance::kPix: return "same PCIe switch";
    case Distance::kPxb: return "through several PCIe switches";
    case Distance::kPhb: return "same PCIe host bridge";
    case Distance::kNode: return "same NUMA node";
    case Distance::kSys: break;
  }
  return "another NUMA node";
}

Distance distance(const PciPlace& a, const PciPlace& b) {
  const auto [in_a, in_b] =
      std::mismatch(a.bridges.begin(), a.bridges.end(), b.bridges.begin(), b.bridges.end());
  const auto common = in_a - a.bridges.begin();
  if (common == 0) {
    const bool near = a.numa_node >= 0 && a.numa_node == b.numa_node;
    return near ? Distance::kNode : Distance::kSys;
  }
  if (common == 1) return Distance::kPhb;
  const auto on_the_way = std::max(a.bridges.end() - in_a, b.bridges.end() - in_b);
  return on_the_way <= 1 ? Distance::kPix : Distance::kPxb;
}

}  // namespace mkernel::topology

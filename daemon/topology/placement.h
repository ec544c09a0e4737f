// Which NIC ports are the rails of this node, and which rails each GPU uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/topology/node.h"

namespace mkernel::topology {

struct Rail {
  std::size_t port = 0;             ///< index into Node::ports
  std::vector<std::uint32_t> cpus;  ///< of the port's NUMA node, for its proxy thread; empty: unknown
};

struct GpuRails {
  std::uint32_t gpu = 0;
  std::vector<std::size_t>
      rails;  ///< lane l of its channels goes over rails[l % rails.size()]; empty: no rail
  Distance distance = Distance::kSys;  ///< to all of them
  std::string why;
};

struct SparePort {
  std::size_t port = 0;
  std::string why;
};

struct Placement {
  std::vector<Rail> rails;
  std::vector<GpuRails> gpus;    ///< by index
  std::vector<SparePort> spare;  ///< ports that are no rail
};

/// A GPU uses ports of its nearest distance only: a farther one would slow down what is striped over both.
/// GPUs that are equally near to the same ports get equally many, and share when there are fewer ports than
/// GPUs; what cannot be dealt out evenly is spare. Rails are numbered in rounds, every GPU's first port, then
/// every second one, so that the first rails serve every GPU and equal nodes number their rails alike. A node
/// without GPUs uses every port.
Placement place(const Node& node);

}  // namespace mkernel::topology

// The order in which row blocks of a gathered matrix arrive, which is the order in which they are computed.
// Pure functions, the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/schedule/topology.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Every source has rows in blocks of equal height (the last may be lower). Own blocks first: they are there.
/// Then those of the other ranks of this node, over NVLink: the j-th block of every one in turn, because all
/// of them push at the same time and at the same pace, each beginning with its first rows. Then those of the
/// other nodes, again in turn, in the order in which their senders go round. Sources with fewer blocks than
/// the largest have empty ones at their end.
struct ArrivalSteps {
  static constexpr std::int32_t kMaxSources = 16;
  struct Place {
    std::int32_t source = 0;
    std::int32_t block = 0;  ///< of the source's rows
  };

  std::int32_t rank = 0;
  std::int32_t world = 1;  ///< 1 .. kMaxSources
  std::int32_t own_blocks = 1;
  std::int32_t blocks = 1;                ///< of the source that has most
  std::int32_t near = 0;                  ///< other ranks of this node
  std::int8_t sources[kMaxSources] = {};  ///< in the order in which they come: own, near, far

  static ArrivalSteps of(const Topology& topology, std::uint32_t rank, std::int32_t own_blocks,
                         std::int32_t blocks);

  MK_HOST_DEVICE std::int32_t far() const { return world - 1 - near; }
  MK_HOST_DEVICE std::int32_t steps() const { return own_blocks + (world - 1) * blocks; }
  MK_HOST_DEVICE Place place(std::int32_t step) const {
    if (step < own_blocks) return {rank, step};
    step -= own_blocks;
    if (step < near * blocks) return {sources[1 + step % near], step / near};
    step -= near * blocks;
    return {sources[1 + near + step % far()], step / far()};
  }
};

inline ArrivalSteps ArrivalSteps::of(const Topology& topology, std::uint32_t rank, std::int32_t own_blocks,
                                     std::int32_t blocks) {
  const std::uint32_t nodes = topology.nodes(), ranks = topology.ranks_per_node();
  ArrivalSteps steps{.rank = static_cast<std::int32_t>(rank),
                     .world = static_cast<std::int32_t>(topology.world()),
                     .own_blocks = own_blocks,
                     .blocks = blocks,
                     .near = static_cast<std::int32_t>(ranks) - 1};
  std::int32_t count = 0;
  // A sender begins with the next node, so what comes first is what the node before this one sends.
  for (std::uint32_t back = 0; back < nodes; ++back) {
    const std::uint32_t node = (topology.node_of(rank) + nodes - back) % nodes;
    for (std::uint32_t next = 0; next < ranks; ++next) {
      const std::uint32_t source = topology.rank_at(node, (topology.local_of(rank) + next) % ranks);
      steps.sources[count++] = static_cast<std::int8_t>(source);
    }
  }
  return steps;
}

}  // namespace mkernel::kernels

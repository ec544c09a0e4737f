#include "kernels/plan/arrival_steps.h"

#include <algorithm>

#include "kernels/plan/topology.h"

namespace mkernel::kernels {

ArrivalSteps ArrivalSteps::of(const Topology& topology, std::uint32_t rank,
                              std::span<const std::int32_t> blocks_of) {
  const std::uint32_t nodes = topology.nodes(), ranks = topology.ranks_per_node();
  ArrivalSteps steps{.rank = static_cast<std::int32_t>(rank),
                     .world = static_cast<std::int32_t>(topology.world()),
                     .own_blocks = blocks_of[rank],
                     .blocks = *std::min_element(blocks_of.begin(), blocks_of.end()),
                     .near = static_cast<std::int32_t>(ranks) - 1,
                     .far = static_cast<std::int32_t>(topology.world() - ranks)};
  std::int8_t turn = 0, more = 0;
  // A sender begins with the next node, so what comes first is what the node before this one sends.
  for (std::uint32_t back = 0; back < nodes; ++back) {
    const std::uint32_t node = (topology.node_of(rank) + nodes - back) % nodes;
    for (std::uint32_t next = 0; next < ranks; ++next, ++turn) {
      const std::uint32_t source = topology.rank_at(node, (topology.local_of(rank) + next) % ranks);
      steps.sources[turn] = static_cast<std::int8_t>(source);
      if (turn == 0 || blocks_of[source] == steps.blocks) continue;
      steps.more[more++] = turn;
      ++(back == 0 ? steps.near_more : steps.far_more);
    }
  }
  return steps;
}

}  // namespace mkernel::kernels

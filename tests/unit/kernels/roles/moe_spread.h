// Where the ranks of a mixture of experts are that the host plays, and how their CTAs are spread.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/plan/topology.h"
#include "tests/support/fake_fabric.h"
#include "tests/support/require.h"

namespace mkernel::test {

/// Ranks are numbered node by node, or `across` nodes: rank r is on node r % nodes.
struct Nodes {
  std::uint32_t nodes = 1, ranks = 1;
  bool across = false;

  std::uint32_t world() const { return nodes * ranks; }
  kernels::Topology topology() const {
    FakeFabric fabric({.nodes = nodes, .ranks_per_node = ranks, .across_nodes = across});
    return require(kernels::Topology::of(fabric.group(0)));
  }
};

/// How the CTAs of a rank are spread.
struct Spread {
  std::int32_t dispatch_ctas = 2;
  std::uint32_t warps = 4;          ///< of a dispatching CTA
  std::uint32_t clusters = 3;       ///< that compute
  std::uint32_t summers = 2;        ///< warps of each that sum
  int pause = 0;                    ///< turns of all others, and more, before a gated tile is multiplied
  bool traced = false;              ///< launches write their timelines
  bool whole_kernel = false;        ///< of as many clusters, and as many dispatching CTAs, of which two sum
  std::int32_t section_blocks = 0;  ///< MoeOptions
  std::optional<bool> apart;        ///< likewise
  std::int32_t sum_parts = 1;       ///< MoeParameters
};

}  // namespace mkernel::test

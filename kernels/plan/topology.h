// Where the ranks of a group live, as every plan sees it: nodes x ranks per node.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/views.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// World = nodes() x ranks_per_node() ranks; a rank is also (node, local). Immutable.
class Topology {
 public:
  /// Ranks in node order: rank = node * ranks_per_node + local.
  Topology(std::uint32_t nodes, std::uint32_t ranks_per_node);

  /// From the members of a group. Error: kInvalidArgument when the nodes do not hold equally many ranks,
  /// naming two that differ.
  static Result<Topology> of(const GroupView& group);

  std::uint32_t nodes() const { return nodes_; }
  std::uint32_t ranks_per_node() const { return ranks_per_node_; }
  std::uint32_t world() const { return nodes_ * ranks_per_node_; }
  std::uint32_t node_of(std::uint32_t rank) const { return places_[rank].node; }
  std::uint32_t local_of(std::uint32_t rank) const { return places_[rank].local; }
  std::uint32_t rank_at(std::uint32_t node, std::uint32_t local) const {
    return ranks_[node * ranks_per_node_ + local];
  }
  /// The rank of the same local index on another node: inter-node traffic goes only there.
  std::uint32_t rail_peer(std::uint32_t rank, std::uint32_t node) const {
    return rank_at(node, local_of(rank));
  }
  /// The other rank that hands on at `here` what `source` sends: of its node the rail peer of `source`. -1
  /// when there is none: both are on one node, or `here` is that rail peer itself.
  std::int64_t via(std::uint32_t source, std::uint32_t here) const {
    const std::uint32_t forwarder = rail_peer(source, node_of(here));
    return forwarder == source || forwarder == here ? std::int64_t{-1} : std::int64_t{forwarder};
  }

 private:
  struct Seat {
    std::uint32_t node = 0;
    std::uint32_t local = 0;
  };

  std::uint32_t nodes_;
  std::uint32_t ranks_per_node_;
  std::vector<Seat> places_;          ///< by rank
  std::vector<std::uint32_t> ranks_;  ///< by node * ranks_per_node + local
};

}  // namespace mkernel::kernels

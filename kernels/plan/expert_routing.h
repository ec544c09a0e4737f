// The routing of one rank's tokens to experts: how many rows go to each expert, in which order they are
// pushed, and in which order finished tokens are summed. The CTAs that dispatch share the work by chunks of
// tokens: each counts its chunk, and after a barrier each places its chunk behind those before it. So every
// place is stable in token order, whatever the number of chunks. Pure.
#pragma once

#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/plan/expert_blocks.h"
#include "proto/abi/host_device.h"

namespace mkernel {
class Status;
}

namespace mkernel::kernels {

/// An entry is one (token, j): number token * topk + j.
struct RoutedTokens {
  const std::int32_t* experts = nullptr;  ///< [tokens, topk], none twice in a token
  const float* weights = nullptr;         ///< [tokens, topk]
  std::int32_t tokens = 0;
  std::int32_t topk = 1;
};

/// Why a launch is refused. It travels with the counts, so that every rank refuses the same launch with the
/// same words: those of the lowest rank that has a problem, and there of the lowest entry.
struct RoutingProblem {
  enum Kind : std::int32_t { kNone, kOutOfRange, kTwice, kNotANumber };

  std::int32_t kind = kNone;
  std::int32_t token = 0;
  std::int32_t j = 0;
  std::int32_t value = 0;  ///< the expert that the entry names

  /// "moe: rank 3: topk[17, 2] = 300, but it must be 0..255" and the like.
  Status to_status(std::int32_t rank, std::int32_t experts) const;
};
static_assert(sizeof(RoutingProblem) == 16);

/// What is wrong with one entry. In an entry with several problems the expert comes before the weight.
MK_HOST_DEVICE inline RoutingProblem problem_of(const RoutedTokens& routed, std::int32_t experts,
                                                std::int32_t token, std::int32_t j) {
  const std::int32_t* mine = routed.experts + std::int64_t{token} * routed.topk;
  const float weight = routed.weights[std::int64_t{token} * routed.topk + j];
  RoutingProblem problem{RoutingProblem::kNone, token, j, mine[j]};
  if (mine[j] < 0 || mine[j] >= experts) {
    problem.kind = RoutingProblem::kOutOfRange;
    return problem;
  }
  for (std::int32_t before = 0; before < j; ++before)
    if (mine[before] == mine[j]) problem.kind = RoutingProblem::kTwice;
  // A NaN is neither above nor below.
  if (problem.kind == RoutingProblem::kNone && !(weight <= 0) && !(weight > 0))
    problem.kind = RoutingProblem::kNotANumber;
  return problem;
}

/// When the last row of a token is computed: the highest local number of its experts. Tokens are summed in
/// this order, because all owners compute their experts in local order.
MK_HOST_DEVICE inline std::int32_t last_local(const RoutedTokens& routed, const ExpertOwners& owners,
                                              std::int32_t token) {
  std::int32_t last = 0;
  for (std::int32_t j = 0; j < routed.topk; ++j) {
    const std::int32_t local = owners.local(routed.experts[std::int64_t{token} * routed.topk + j]);
    last = local > last ? local : last;
  }
  return last;
}

/// Where ranks live. A seat is node * ranks per node + local index. Null pointers: ranks are numbered node by
/// node, so that each is its own seat.
struct RankSeats {
  const std::int32_t* seats = nullptr;  ///< [world], by rank
  const std::int32_t* ranks = nullptr;  ///< [world], by seat

  MK_HOST_DEVICE std::int32_t seat(std::int32_t rank) const { return seats == nullptr ? rank : seats[rank]; }
  MK_HOST_DEVICE std::int32_t rank(std::int32_t seat) const { return ranks == nullptr ? seat : ranks[seat]; }
};

/// The order in which a rank pushes the rows of its node's experts: local expert 0 of every owner, then local
/// expert 1, and so on, because this is the order in which owners compute them. (In token order no block
/// would be whole before nearly all rows are out.) The owners begin with the next rank of the node and end
/// with this one, so that ranks that push at the same pace never push to one owner at a time.
///
/// A token with experts on another node crosses to it once, to the rank of the same local index, its rail
/// peer, which pushes copies to the owners there. A node turn t = 0 .. nodes - 2 is the t + 1st node after
/// this one.
struct PushOrder {
  ExpertOwners owners;
  std::int32_t rank = 0;
  std::int32_t ranks_per_node = 1;  ///< divides owners.world
  RankSeats seats;

  /// Steps 0 .. steps() - 1, one expert each.
  MK_HOST_DEVICE std::int32_t steps() const { return owners.max_local() * ranks_per_node; }
  /// -1: the owner of this step has no such expert.
  MK_HOST_DEVICE std::int32_t expert(std::int32_t step) const {
    const std::int32_t owner = neighbour(1 + step % ranks_per_node);
    const std::int32_t local = step / ranks_per_node;
    return local < owners.count(owner) ? owners.first(owner) + local : -1;
  }
  /// Of an expert of this node.
  MK_HOST_DEVICE std::int32_t step(std::int32_t expert) const {
    const std::int32_t ahead = seats.seat(owners.owner(expert)) - seats.seat(rank) - 1;
    return owners.local(expert) * ranks_per_node + (ahead < 0 ? ahead + ranks_per_node : ahead);
  }

  MK_HOST_DEVICE std::int32_t nodes() const { return owners.world / ranks_per_node; }
  MK_HOST_DEVICE std::int32_t others() const { return nodes() - 1; }
  MK_HOST_DEVICE std::int32_t node(std::int32_t of_rank) const {
    return seats.seat(of_rank) / ranks_per_node;
  }
  /// The rank of this node that many after this one; with `ahead` = ranks_per_node it is this one.
  MK_HOST_DEVICE std::int32_t neighbour(std::int32_t ahead) const {
    return seats.rank(node(rank) * ranks_per_node + (seats.seat(rank) + ahead) % ranks_per_node);
  }
  /// Where an expert lives; nodes() - 1: on this node.
  MK_HOST_DEVICE std::int32_t node_turn(std::int32_t expert) const {
    return (node(owners.owner(expert)) - node(rank) - 1 + nodes()) % nodes();
  }
  MK_HOST_DEVICE std::int32_t rail_peer(std::int32_t node_turn) const {
    return seats.rank((seats.seat(rank) + (node_turn + 1) * ranks_per_node) % owners.world);
  }
  /// The node turn of this rank as its rail peer counts.
  MK_HOST_DEVICE std::int32_t as_seen_from(std::int32_t node_turn) const { return others() - 1 - node_turn; }
  /// The order in which the sources of its rows lie within an expert of this node, 0 .. world - 1: the ranks
  /// of the node first. So rows that do not cross nodes are blocks of their own (ExpertSectionCut).
  MK_HOST_DEVICE std::int32_t source(std::int32_t turn) const {
    return seats.rank((node(rank) * ranks_per_node + turn) % owners.world);
  }
};

/// Rows of an expert from the first `turns` sources, as the ranks of its owner's node order them. `counts`:
/// [world][experts].
MK_HOST_DEVICE inline std::int32_t rows_of_sources(const PushOrder& order, const std::int32_t* counts,
                                                   std::int32_t turns, std::int32_t expert) {
  std::int32_t rows = 0;
  for (std::int32_t turn = 0; turn < turns; ++turn)
    rows += counts[order.source(turn) * order.owners.experts + expert];
  return rows;
}

/// Where a row lies in the pool of its expert's owner.
struct PoolPlace {
  std::int32_t owner = 0;
  std::int32_t block = 0;  ///< of the owner's
  std::int32_t row = 0;    ///< of its pool
};

/// The place of a row that is number `index` among those that `source` sends to `expert`. `order`: of the
/// expert's owner or of another rank of its node.
MK_HOST_DEVICE inline PoolPlace pool_place(const ExpertTable& table, const PushOrder& order,
                                           const std::int32_t* counts, std::int32_t source,
                                           std::int32_t expert, std::int32_t index) {
  const std::int32_t owner = table.owners.owner(expert);
  std::int32_t turn = 0;
  while (order.source(turn) != source) ++turn;
  const std::int32_t row = table.first_row(expert) + index + rows_of_sources(order, counts, turn, expert);
  return {owner, table.of_rank(owner).block_of(table.owners.local(expert), row), row};
}

/// The pushing warps take pushes in units of so many that follow each other, from one counter: in order,
/// whoever is slow. With contiguous shares the first experts would be pushed by one warp alone and be whole
/// at the end; a fixed stride would leave the first experts to a CTA that starts late. Few rows, so that they
/// spread over the warps; several, because they share a fence and, in one block, the signal.
inline constexpr std::int32_t kPushUnitRows = 8;

}  // namespace mkernel::kernels

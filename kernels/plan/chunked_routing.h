// The routing of one rank's tokens on the host, chunk by chunk, and why a launch is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/types.h"
#include "kernels/plan/expert_routing.h"
#include "kernels/plan/expert_table.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// Why a launch is refused, the same on every rank: the problem of the lowest rank that has one; else more
/// rows than a pool of `capacity` padded rows holds. `problems`: [world].
Status refusal_of(std::span<const RoutingProblem> problems, const HostExpertTable& table,
                  std::int32_t capacity);

/// What the dispatching CTAs of a rank make of its routing, chunk by chunk: the host's model of it. All
/// chunks are counted before the first one is placed. Different threads may count different chunks at a time,
/// and place them.
class ChunkedRouting {
 public:
  struct Push {
    std::int32_t entry = 0;
    std::int32_t expert = 0;
    std::int32_t index = 0;  ///< among this rank's rows of the expert
  };

  /// `routed` is kept: it refers to arrays that outlive this.
  ChunkedRouting(const RoutedTokens& routed, const PushOrder& order, std::int32_t chunks);

  /// Stops at the chunk's first problem.
  void count(std::int32_t chunk);
  void place(std::int32_t chunk);

  // When all chunks are counted.
  /// The first problem of all.
  RoutingProblem problem() const;
  /// [experts]: rows that this rank sends to each.
  std::vector<std::int32_t> counts() const { return total(&Chunk::by_expert); }
  /// Tokens that cross to the node of that turn.
  std::int32_t crossings(std::int32_t node_turn) const;
  /// Rows for this node's experts.
  std::int32_t pushes() const { return pushes_before(order_.steps()); }
  /// Those of the first `steps` steps of PushOrder.
  std::int32_t pushes_before(std::int32_t steps) const;

  // When all chunks are placed.
  /// 0 <= `number` < pushes(): rows for this node's experts, in the order of PushOrder; within an expert in
  /// token order.
  Push push(std::int32_t number) const { return row(pushed_[static_cast<std::size_t>(number)]); }
  Push row(std::int32_t entry) const {
    return {entry, routed_.experts[entry], index_[static_cast<std::size_t>(entry)]};
  }
  /// [tokens], ascending by last_local(), within it in token order.
  const std::vector<std::int32_t>& token_order() const { return token_order_; }
  /// The token that crosses as number 0 .. crossings() - 1: by the first local expert that it has there.
  std::int32_t crossing(std::int32_t node_turn, std::int32_t number) const {
    return crossing_[at(node_turn, number)];
  }
  /// As which number the sum of a token's rows there returns: by its last local expert there, because sums
  /// become ready in this order. -1: it has no expert there.
  std::int32_t returning(std::int32_t node_turn, std::int32_t token) const {
    return returning_[at(node_turn, token)];
  }
  /// Entries of a token with experts on the node of that turn, in top-k order.
  std::vector<std::int32_t> entries(std::int32_t node_turn, std::int32_t token) const;

 private:
  struct Chunk {
    RoutingProblem problem;
    std::vector<std::int32_t> by_expert;  ///< rows
    std::vector<std::int32_t> by_local;   ///< tokens, by last_local()
    std::vector<std::int32_t> by_first;   ///< tokens, by node turn and the first local expert there
    std::vector<std::int32_t> by_last;    ///< tokens, by node turn and the last local expert there
  };
  using Kinds = std::vector<std::int32_t>;
  /// Of a token on the node of a turn: first and last local expert. first < 0: none.
  struct Span {
    std::int32_t first = -1, last = -1;
  };
  Range tokens(std::int32_t chunk) const { return block_range(routed_.tokens, chunks(), chunk); }
  std::int32_t chunks() const { return static_cast<std::int32_t>(chunks_.size()); }
  std::size_t at(std::int32_t node_turn, std::int32_t number) const {
    return static_cast<std::size_t>(node_turn * routed_.tokens + number);
  }
  std::size_t kind(std::int32_t node_turn, std::int32_t local) const {
    return static_cast<std::size_t>(node_turn * order_.owners.max_local() + local);
  }
  Span span(std::int32_t node_turn, std::int32_t token) const;
  /// Of all chunks; of those before `end`.
  Kinds total(Kinds Chunk::*counts) const { return total(counts, chunks()); }
  Kinds total(Kinds Chunk::*counts, std::int32_t end) const;
  /// Where a chunk's tokens of every kind begin: behind those of the kinds before, and those of the chunks
  /// before. Every `per_node` kinds begin anew.
  Kinds begin_of(std::int32_t chunk, Kinds Chunk::*counts, std::size_t per_node) const;

  RoutedTokens routed_;
  PushOrder order_;
  std::vector<Chunk> chunks_;
  std::vector<std::int32_t> index_;                 ///< by entry
  std::vector<std::int32_t> pushed_;                ///< entries; the first pushes() of them are used
  std::vector<std::int32_t> token_order_;           ///< tokens
  std::vector<std::int32_t> crossing_, returning_;  ///< [others][tokens]
};

}  // namespace mkernel::kernels

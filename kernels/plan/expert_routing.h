// The routing of one rank's tokens to experts: how many rows go to each expert, in which order they are
// pushed, and in which order finished tokens are summed. The CTAs that dispatch share the work by chunks of
// tokens: each counts its chunk, and after a barrier each places its chunk behind those before it. So every
// place is stable in token order, whatever the number of chunks. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/types.h"
#include "kernels/plan/expert_blocks.h"
#include "proto/abi/host_device.h"
#include "proto/abi/status.h"

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

/// The order in which a rank pushes the rows of its experts: local expert 0 of every owner, then local expert
/// 1, and so on, because this is the order in which owners compute them. (In token order no block would be
/// whole before nearly all rows are out.) The owners begin with the next rank and end with this one, so that
/// ranks that push at the same pace never push to one owner at a time.
struct PushOrder {
  ExpertOwners owners;
  std::int32_t rank = 0;

  /// Steps 0 .. steps() - 1, one expert each.
  MK_HOST_DEVICE std::int32_t steps() const { return owners.max_local() * owners.world; }
  /// -1: the owner of this step has no such expert.
  MK_HOST_DEVICE std::int32_t expert(std::int32_t step) const {
    const std::int32_t owner = (rank + 1 + step % owners.world) % owners.world, local = step / owners.world;
    return local < owners.count(owner) ? owners.first(owner) + local : -1;
  }
  MK_HOST_DEVICE std::int32_t step(std::int32_t expert) const {
    const std::int32_t ahead = owners.owner(expert) - rank - 1;
    return owners.local(expert) * owners.world + (ahead < 0 ? ahead + owners.world : ahead);
  }
};

/// The pushing warps take pushes in units of so many that follow each other, from one counter: in order,
/// whoever is slow. With contiguous shares the first experts would be pushed by one warp alone and be whole
/// at the end; a fixed stride would leave the first experts to a CTA that starts late. Few rows, so that they
/// spread over the warps; several, because they share a fence and, in one block, the signal.
inline constexpr std::int32_t kPushUnitRows = 8;

/// What the dispatching CTAs of a rank make of its routing, chunk by chunk: the host's model of it, and the
/// CPU's. All chunks are counted before the first one is placed.
class ChunkedRouting {
 public:
  struct Push {
    std::int32_t entry = 0;
    std::int32_t expert = 0;
    std::int32_t index = 0;  ///< among this rank's rows of the expert
  };

  /// `routed` is kept: it refers to arrays that outlive this.
  ChunkedRouting(const RoutedTokens& routed, const ExpertOwners& owners, std::int32_t rank,
                 std::int32_t chunks);

  /// Stops at the chunk's first problem.
  void count(std::int32_t chunk);
  void place(std::int32_t chunk);

  // When all chunks are counted.
  /// The first problem of all.
  RoutingProblem problem() const;
  /// [experts]: rows that this rank sends to each.
  std::vector<std::int32_t> counts() const;

  // When all chunks are placed.
  /// 0 .. tokens * topk - 1, in the order of PushOrder; within an expert in token order.
  Push push(std::int32_t number) const;
  std::int32_t pushes() const { return static_cast<std::int32_t>(pushed_.size()); }
  /// [tokens], ascending by last_local(), within it in token order.
  const std::vector<std::int32_t>& token_order() const { return token_order_; }

 private:
  struct Chunk {
    RoutingProblem problem;
    std::vector<std::int32_t> by_step;   ///< rows, by step of the push order
    std::vector<std::int32_t> by_local;  ///< tokens, by last_local()
  };
  Range tokens(std::int32_t chunk) const { return block_range(routed_.tokens, chunks(), chunk); }
  std::int32_t chunks() const { return static_cast<std::int32_t>(chunks_.size()); }
  /// Where a chunk's rows or tokens of every kind begin: behind all of the kinds before, and those of its own
  /// kind in the chunks before.
  std::vector<std::int32_t> begin_of(std::int32_t chunk, std::vector<std::int32_t> Chunk::*counts) const;
  std::int32_t expert_of(std::int32_t entry) const { return routed_.experts[entry]; }

  RoutedTokens routed_;
  PushOrder order_;
  std::vector<Chunk> chunks_;
  std::vector<std::int32_t> pushed_;       ///< entries
  std::vector<std::int32_t> token_order_;  ///< tokens
};

}  // namespace mkernel::kernels

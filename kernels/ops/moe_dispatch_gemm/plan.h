// Plan of the mixture-of-experts layer: who owns which expert, the tiles of its products, the exchange of
// plan/expert_exchange_plan.h with the sizes that a shape gives it, and how the work is shared.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/plan/expert_exchange_plan.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Overrides; the same on every rank. 0 = by shape.
struct MoeOptions {
  std::int32_t block_rows = 0;     ///< rows of a block and of a tile; a multiple of `unit_rows`
  std::int32_t unit_rows = 0;      ///< what the rows of an expert are padded to in a pool
  std::int32_t tile_columns = 0;   ///< of a tile of either product
  std::int32_t dispatch_ctas = 0;  ///< that route, push and forward
  std::int32_t pieces = 0;         ///< puts that what crosses to a node is cut into, at least
};

/// Pure and the same on every rank. Everything lies in the operation's own workspace.
struct MoePlan {
  static constexpr std::uint32_t kRowsLane = 0;  ///< counts, then rows
  static constexpr std::uint32_t kSumsLane = 1;  ///< sums of a node, back to the rank of the tokens

  MoeShape shape;
  Topology topology;
  ExpertExchangePlan exchange;
  std::int32_t tile_columns = 0;  ///< of `intermediate` (twice as many of w1) or n in the first product, of n
  std::int32_t dispatch_ctas = 1;  ///< each routes a chunk of the tokens
  std::int32_t lead = 0;           ///< of ExpertTasks

  /// Errors: kInvalidArgument for a shape or an option that cannot be, naming field, value and limit. The
  /// limits are such that every number of the exchange that has 32 bits fits them. Ranks that are not
  /// numbered node by node are refused, too.
  static Result<MoePlan> make(const MoeShape& shape, const Topology& topology,
                              const MoeOptions& options = {});

  /// "moe max_tokens=4096 hidden=7168 ..."
  std::string signature() const;
  Requirements requirements() const;

  Range experts(std::uint32_t rank) const { return block_range(shape.experts, topology.world(), rank); }
  bool gated() const { return shape.intermediate > 0; }
  /// Columns of w1 as a row-major matrix: the gate and the value side by side when there is a second product.
  std::int64_t w1_columns() const { return gated() ? 2 * shape.intermediate : shape.n; }
  /// Columns of a product that `all` are, in its column of tiles number `column`.
  Range columns(std::int64_t all, std::int32_t column) const;
};

}  // namespace mkernel::kernels

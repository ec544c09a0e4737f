// Plan of the mixture-of-experts layer: who owns which expert, the tiles of its products, the exchange of
// plan/expert_exchange_plan.h with the sizes that a shape gives it, and how the work is shared.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/plan/expert_exchange_plan.h"
#include "kernels/plan/layer_tasks.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Overrides; the same on every rank. 0 = by shape.
struct MoeOptions {
  std::int32_t block_rows = 0;      ///< rows of a block and of a tile; a multiple of `unit_rows`
  std::int32_t unit_rows = 0;       ///< what the rows of an expert are padded to in a pool
  std::int32_t tile_columns = 0;    ///< of the results, in a tile of either product
  std::int32_t gated_columns = 0;   ///< instead in the first of two products; 0 = tile_columns
  std::int32_t dispatch_ctas = 0;   ///< that route, push and forward
  std::int32_t pieces = 0;          ///< puts that what crosses to a node is cut into, at least
  std::int32_t section_blocks = 0;  ///< ExpertSectionCut::most: even
  std::optional<bool> apart;        ///< ExpertSectionCut
  // cuda executor
  std::int32_t summing_ctas = 0;  ///< dispatching CTAs that do not compute: they push, and then sum
  std::int32_t sms = 0;           ///< no more of the device's, so that ranks can share it; 0 = all
  std::string machine;            ///< as GemmPlanOptions' of this name
};

/// Pure and the same on every rank. Everything lies in the operation's own workspace.
struct MoePlan {
  MoeShape shape;
  Topology topology;
  ExpertExchangePlan exchange;
  std::int32_t tile_columns = 0;   ///< of n, in a tile of the product whose rows are the finished ones
  std::int32_t gated_columns = 0;  ///< of `intermediate`, in a tile of the first of two products
  std::int32_t dispatch_ctas = 1;  ///< each routes a chunk of the tokens
  std::int32_t lead = 0;           ///< of ExpertTasks
  ExpertSectionCut sections;
  /// What exchange.seats points to: seats by rank, then ranks by seat. Null when ranks are numbered node by
  /// node.
  std::shared_ptr<const std::vector<std::int32_t>> seats;

  /// Errors: kInvalidArgument for a shape or an option that cannot be, naming field, value and limit. The
  /// limits are such that every number of the exchange that has 32 bits fits them.
  static Result<MoePlan> make(const MoeShape& shape, const Topology& topology,
                              const MoeOptions& options = {});

  /// "moe max_tokens=4096 hidden=7168 ..."
  std::string signature() const;
  Requirements requirements() const;

  /// kInvalidArgument for operands of `rank` that are null, or too many tokens.
  Status check(std::uint32_t rank, const MoeArguments& arguments) const;

  Range experts(std::uint32_t rank) const { return block_range(shape.experts, topology.world(), rank); }
  bool gated() const { return shape.intermediate > 0; }
  bool shared() const { return shape.shared_intermediate > 0; }
  /// Columns of w1 as a row-major matrix: the gate and the value side by side when there is a second product.
  std::int64_t w1_columns() const { return gated() ? 2 * shape.intermediate : shape.n; }
  /// Columns of what the product of a tile leaves, in its column of tiles.
  Range columns(const ExpertTasks::Task& tile) const;
  SharedExpertTiles shared_expert_tiles(std::int64_t tokens) const;
};

}  // namespace mkernel::kernels

// Plan of a product whose tiles are summed over ranks, for the cuda executor on one node: who computes which
// tile when, who sums. GEMM+RS is just that; GEMM+AR hands the sums on.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/gemm/sm90_tile.h"
#include "kernels/ops/exchange/push_reduce_plan.h"
#include "kernels/schedule/owner_steps.h"
#include "kernels/schedule/raster.h"
#include "kernels/schedule/reduce_units.h"
#include "kernels/schedule/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Ranks of one node at most; a lane of a warp waits for each.
inline constexpr int kMaxReduceOwners = 16;

/// Overrides; the same on every rank.
struct TileReduceOptions {
  std::optional<Sm90Tile> tile;
  std::int32_t reduce_ctas = 0;  ///< that do nothing but sum; 0 = by shape
  std::int32_t sms = 0;          ///< no more of the device's, so that ranks can share it; 0 = all
};

/// Pure; the same on every rank but for `steps.rank`. Tiles are those of the GEMM body, cut per
/// owner: a row block is the rows of one cluster (tile_rows x tile_cluster) of one owner.
struct TileReducePlan {
  Sm90Tile tile = Sm90Tile::k128x256;
  std::int32_t reduce_ctas = 0;   ///< the first of the grid; a multiple of the cluster
  std::int32_t compute_ctas = 0;  ///< a multiple of the cluster
  OwnerSteps steps;
  Raster raster;      ///< rows: steps; columns: of tiles
  ReduceUnits units;  ///< of the rows of an owner with most
  PushReducePlan reduce;

  /// `sms`: multiprocessors of the device. Errors: check_shape(); kInvalidArgument for sizes that TMA cannot
  /// move (k % 8, n % 8) and options outside what they allow; kUnimplemented for more than one node.
  static Result<TileReducePlan> make(OpKind kind, const GemmShape& shape, const Topology& topology,
                                     std::uint32_t rank, std::int32_t sms,
                                     const TileReduceOptions& options = {});
};

}  // namespace mkernel::kernels

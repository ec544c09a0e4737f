// Plan of GEMM+RS for the cuda executor on one node: who computes which tile when, who sums.
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
inline constexpr int kMaxGemmRsOwners = 16;

/// Overrides; the same on every rank.
struct GemmRsCudaOptions {
  std::optional<Sm90Tile> tile;
  std::int32_t reduce_ctas = 0;  ///< that do nothing but sum; 0 = by shape
};

/// Pure; the same on every rank but for `steps.rank` and `units`. Tiles are those of the GEMM body, cut per
/// owner: a row block is the rows of one cluster (tile_rows x tile_cluster) of one owner.
struct GemmRsCudaPlan {
  Sm90Tile tile = Sm90Tile::k128x256;
  std::int32_t reduce_ctas = 0;   ///< the first of the grid; a multiple of the cluster
  std::int32_t compute_ctas = 0;  ///< a multiple of the cluster
  OwnerSteps steps;
  Raster raster;      ///< rows: steps; columns: of tiles
  ReduceUnits units;  ///< of own rows
  PushReducePlan reduce;

  /// `sms`: multiprocessors of the device. Errors: check_shape(); kInvalidArgument for sizes that TMA cannot
  /// move (k % 8, n % 8) and options outside what they allow; kUnimplemented for more than one node.
  static Result<GemmRsCudaPlan> make(const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                                     std::int32_t sms, const GemmRsCudaOptions& options = {});
};

}  // namespace mkernel::kernels

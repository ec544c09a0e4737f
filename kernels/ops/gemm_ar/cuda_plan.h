// Plan of GEMM+AR for the cuda executor on one node: GEMM+RS, and where its sums go.
#pragma once

#include <cstdint>

#include "kernels/ops/exchange/push_sums_plan.h"
#include "kernels/ops/exchange/tile_reduce_plan.h"
#include "kernels/schedule/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Pure; the same on every rank but for `product.steps.rank`.
struct GemmArCudaPlan {
  TileReducePlan product;
  PushSumsPlan sums;

  std::uint64_t workspace_bytes() const { return sums.end(); }
  /// Units of the other owners that a rank copies into its c, each owner's in the order in which it sums.
  std::int32_t copies() const { return (sums.world - 1) * sums.units; }

  /// Errors: TileReducePlan::make().
  static Result<GemmArCudaPlan> make(const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                                     std::int32_t sms, const TileReduceOptions& options = {});
};

}  // namespace mkernel::kernels

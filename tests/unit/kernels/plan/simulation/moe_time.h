// How long a launch of the mixture of experts takes by its plan and the machine's rates: when rows arrive,
// tiles are computed in the order of the plan, sums are made and cross. Where moe.h asks what can go wrong,
// this asks what comes late. It knows nothing of power, and of the L2 only what fits.
#pragma once

#include <cstdint>

#include "kernels/ops/moe_dispatch_gemm/gpu_plan.h"

namespace mkernel::test::moe_time {

/// A launch in which every rank has as many tokens as it may.
struct Case {
  kernels::MoeGpuPlan plan;
  bool zipf = false;          ///< weight of an expert 1 / (1 + number)^1.2; else all alike
  double share = 1;           ///< of the GPU's memory and L2, of ranks that share it; they have no links
  std::int32_t sum_rows = 8;  ///< rows of a token that a summing warp has under way
  bool sums_beside = true;    ///< one warp of every cluster sums while the others compute
};

/// Seconds from the launch, of the slowest rank.
struct Times {
  double table = 0;      ///< when the first row may be pushed
  double first_row = 0;  ///< when the first block of rows is whole
  double pushed = 0;     ///< when all rows are in their pools
  double tiles = 0;      ///< when the last tile ends
  double end = 0;
  double waited = 0;        ///< by a cluster for rows, in the mean
  double memory_bytes = 0;  ///< of operands, that the L2 did not have
};

Times times(const Case& of);

/// Of the slowest rank, its tiles alone, if all rows were there: a grouped GEMM on all multiprocessors.
double product_seconds(const Case& of);

}  // namespace mkernel::test::moe_time

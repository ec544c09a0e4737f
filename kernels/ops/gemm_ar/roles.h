// The roles of GEMM+AR and what they share: those of GEMM+RS, and the way of a finished tile to everybody.
// README.md shows them together.
#pragma once

#include "kernels/cpu/exchange/gather.h"
#include "kernels/cpu/exchange/reduce.h"
#include "kernels/cpu/sync/launch.h"
#include "kernels/ops/gemm_ar/plan.h"
#include "kernels/ops/gemm_rs/roles.h"

namespace mkernel::kernels::gemm_ar {

/// What the roles of one launch share. `multiply` belongs to the compute threads.
struct State {
  const GemmArPlan& plan;
  const GemmShape& shape;
  const GemmArguments& arguments;
  Reduce& reduce;
  Gather& gather;
  ArrivalOrder& order;  ///< of finished chunks
  gemm_rs::ComputeState& multiply;
};

/// Partial tiles as in GEMM+RS; then finished tiles into c in the order in which they arrive.
Status compute(State& state, const Launch& launch, int thread);

/// The world's sums of this rank's tiles, rounded once, into its stream; each chunk to the node and to the
/// rail peers. inter_recv is Gather::relay().
Status inter_reduce(State& state, const Launch& launch);

}  // namespace mkernel::kernels::gemm_ar

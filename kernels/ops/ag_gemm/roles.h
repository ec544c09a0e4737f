// The roles of AG+GEMM and what they share. README.md shows them together.
#pragma once

#include "kernels/cpu/exchange/gather.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/launch/gemm_operation.h"
#include "kernels/cpu/sync/launch.h"
#include "kernels/ops/ag_gemm/plan.h"

namespace mkernel::kernels::ag_gemm {

/// What the roles of one launch share.
struct State {
  const AgGemmPlan& plan;
  const GemmShape& shape;
  const GemmArguments& arguments;
  const CpuGemm& gemm;
  Gather& gather;
  OperandB& b;
  ArrivalOrder& order;
};

/// Tiles of c in the order in which their rows arrive. `thread` of launch.compute_threads.
Status compute(State& state, const Launch& launch, int thread);

/// Own rows into the slab, and to the other ranks of the node.
Status intra_comm(State& state, const Launch& launch);

/// Own rows to the rail peers. The receiving side, inter_recv, is Gather::relay().
Status inter_send(State& state, const Launch& launch);

}  // namespace mkernel::kernels::ag_gemm

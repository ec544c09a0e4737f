// The cuda executor's operations against what else one could use, in one run: graph-captured launches, new
// inputs and a verified output in every timed iteration.
#pragma once

#include <mkernel/client.h>

#include <string>

#include "tools/mkbench/row.h"

namespace mkernel::bench {

class Nccl;

struct OpCudaOptions {
  int device = 0;  ///< of the group's session
  int iterations = 3;
  bool gemm = false;           ///< measure the product alone too
  const Nccl* nccl = nullptr;  ///< measure cuBLAS and NCCL too
  ExecutorOptions executor;
  GemmPlanOptions plan;
  std::string trace;  ///< file for the timeline of one more launch; empty: none
};

/// **Collective.** Rounds of launches of ours, of the product alone and of cuBLAS with NCCL, in turns, so
/// that all of them see the same clocks; before every round the inputs are made anew, after it the outputs of
/// ours are verified. An iteration's time is that of its slowest rank. NCCL's collectives want equal blocks:
/// where the rows do not divide, that side is left out.
Result<Row> measure_op_cuda(Group& group, OpKind kind, const GemmShape& shape, const OpCudaOptions& options);

}  // namespace mkernel::bench

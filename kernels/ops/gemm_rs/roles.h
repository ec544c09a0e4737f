// The roles of GEMM+RS and what they share. README.md shows them together.
#pragma once

#include <atomic>
#include <cstddef>

#include "kernels/cpu/exchange/reduce.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/launch/gemm_operation.h"
#include "kernels/cpu/sync/launch.h"

namespace mkernel::kernels::gemm_rs {

/// What the compute threads of one launch share.
struct ComputeState {
  const GemmShape& shape;
  const GemmArguments& arguments;
  const CpuGemm& gemm;
  const Reduce& reduce;
  OperandB& b;
  std::atomic<std::size_t> next{0};  ///< position in reduce.compute_order()
};

/// Partial tiles in compute order, each straight into its slot at the node's reducer. The other roles are
/// Reduce::sum_node() (intra_comm) and Reduce::send_partials() (inter_send).
Status compute(ComputeState& state, const Launch& launch, int thread);

/// inter_reduce: the world's sums of this rank's tiles, rounded once, into its rows of c.
Status inter_reduce(Reduce& reduce, const GemmShape& shape, const GemmArguments& arguments,
                    std::uint32_t rank, const Launch& launch);

}  // namespace mkernel::kernels::gemm_rs

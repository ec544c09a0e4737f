// A product whose sums over ranks go into c, and that is all: GEMM+RS, and the way of GEMM+AR with which
// every rank sums all rows for itself (PushReducePlan::to_all). One maker per executor.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/plan/tile_reduce_plan.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

class CudaGemmOperation;

/// `kind`: whose operands it takes, and what its errors call it.
std::unique_ptr<GemmOperation> make_cpu_sums_into_c(OpKind kind, TileReducePlan plan, const GemmShape& shape,
                                                    Topology topology);

/// For the current device. Errors: those of loading the kernel.
Result<std::unique_ptr<CudaGemmOperation>> make_cuda_sums_into_c(OpKind kind, const TileReducePlan& plan,
                                                                 const GemmShape& shape, Topology topology);

}  // namespace mkernel::kernels

// The operations of the cuda executor, as the client library and tests make them.
#pragma once

#include <memory>

#include "kernels/cuda/launch/gemm_operation.h"
#include "kernels/ops/ag_gemm/cuda_plan.h"
#include "kernels/plan/tile_reduce_plan.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// For the current device. Errors: AgGemmCudaPlan::make(); kUnavailable without a device; kUnimplemented on
/// one that is not of compute capability 9.0.
Result<std::unique_ptr<CudaGemmOperation>> make_cuda_ag_gemm(const GemmShape& shape, Topology topology,
                                                             std::uint32_t rank,
                                                             const AgGemmCudaOptions& options = {});

/// The same; errors: TileReducePlan::make().
Result<std::unique_ptr<CudaGemmOperation>> make_cuda_gemm_rs(const GemmShape& shape, Topology topology,
                                                             std::uint32_t rank,
                                                             const TileReduceOptions& options = {});
Result<std::unique_ptr<CudaGemmOperation>> make_cuda_gemm_ar(const GemmShape& shape, Topology topology,
                                                             std::uint32_t rank,
                                                             const TileReduceOptions& options = {});

}  // namespace mkernel::kernels

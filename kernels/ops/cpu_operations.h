// Makers of the GEMM operations on the cpu executor, one per folder beside this file; make_gemm() picks.
#pragma once

#include <memory>

#include "kernels/ops/ag_gemm/plan.h"
#include "kernels/plan/reduce_plan.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

Result<std::unique_ptr<GemmOperation>> make_cpu_ag_gemm(const GemmShape& shape, Topology topology,
                                                        const AgGemmOptions& options = {});
Result<std::unique_ptr<GemmOperation>> make_cpu_gemm_rs(const GemmShape& shape, Topology topology,
                                                        const ReduceOptions& options = {});
Result<std::unique_ptr<GemmOperation>> make_cpu_gemm_ar(const GemmShape& shape, Topology topology,
                                                        const ReduceOptions& options = {});

}  // namespace mkernel::kernels

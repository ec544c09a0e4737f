#include "kernels/ops/gemm_rs/plan.h"

#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {

Result<GemmRsPlan> GemmRsPlan::make(const GemmShape& shape, const Topology& topology,
                                    const ReduceOptions& options) {
  if (Status status = check_shape(OpKind::kGemmRs, shape); !status.ok()) return status;
  return GemmRsPlan(shape, topology, options);
}

}  // namespace mkernel::kernels

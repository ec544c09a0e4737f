#include <string>
#include <utility>

#include "kernels/ops/cpu_operations.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel {

Result<std::unique_ptr<GemmOperation>> make_gemm(OpKind kind, const GemmShape& shape,
                                                 const kernels::GroupView& group) {
  auto topology = kernels::Topology::of(group);
  if (!topology.ok()) return topology.status();
  switch (kind) {
    case OpKind::kAgGemm: return kernels::make_cpu_ag_gemm(shape, std::move(topology).value());
    case OpKind::kGemmRs: return kernels::make_cpu_gemm_rs(shape, std::move(topology).value());
    case OpKind::kGemmAr: return kernels::make_cpu_gemm_ar(shape, std::move(topology).value());
    default: break;
  }
  return Status(StatusCode::kInvalidArgument, std::string("make_gemm: kind is ") + kernels::name_of(kind) +
                                                  ", must be ag_gemm, gemm_rs or gemm_ar");
}

}  // namespace mkernel

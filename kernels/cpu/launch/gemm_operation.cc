#include "kernels/cpu/launch/gemm_operation.h"

#include <utility>

#include "kernels/plan/gemm_shape.h"
#include "kernels/plan/product_columns.h"

namespace mkernel::kernels {

Status OperandB::widen_part(const Launch& launch, int thread) {
  gemm_.convert_b(b_, thread, launch.compute_threads);
  signal_add(parts_, 1);
  return wait(launch);
}

Status OperandB::wait(const Launch& launch) const {
  return wait_at_least(parts_.value, static_cast<std::uint64_t>(launch.compute_threads),
                       {"compute", "parts of b", launch.scope.rank, -1}, launch.at_stage(1));
}

CpuGemmOperation::CpuGemmOperation(OpKind kind, const GemmShape& shape, Topology topology)
    : kind_(kind), shape_(shape), topology_(std::move(topology)), binding_(name_of(kind)) {}

std::string CpuGemmOperation::signature() const {
  return signature_of(kind_, shape_);
}

Status CpuGemmOperation::bind(const GroupView& group, const SymmetricView& workspace,
                              const SymmetricView& lent, std::uint32_t first_lane) {
  MK_RETURN_IF_ERROR(binding_.bind(requirements(), topology_, group, workspace, lent, first_lane));
  attach();
  return {};
}

Status CpuGemmOperation::run(const GemmArguments& arguments, const ExecutorOptions& options) {
  MK_RETURN_IF_ERROR(binding_.ready());
  MK_RETURN_IF_ERROR(check_operands(kind_, shape_, arguments, group().rank(), topology_.world()));
  return binding_.launch(topology_, options, [&](Launch& current) {
    for (int product = static_cast<int>(gemms_.size()); product < products_of(shape_); ++product) {
      GemmShape shape = shape_;
      shape.n = columns_of(shape_, product);
      gemms_.push_back(std::make_unique<CpuGemm>(shape));
    }
    launch(arguments, current);
  });
}

}  // namespace mkernel::kernels

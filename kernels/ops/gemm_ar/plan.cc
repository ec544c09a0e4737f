#include "kernels/ops/gemm_ar/plan.h"

#include "kernels/plan/cuts.h"

namespace mkernel::kernels {

Result<GemmArPlan> GemmArPlan::make(const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                                    const Machine& machine, const TileReduceOptions& options) {
  auto product = TileReducePlan::make(OpKind::kGemmAr, shape, topology, rank, machine, options);
  if (!product.ok()) return product.status();
  GemmArPlan plan{.product = *product};
  plan.sums = {.words_begin = plan.product.word_bytes(),
               .begin = whole_lines(plan.product.data_bytes()),
               .world = plan.product.reduce.world,
               .units = plan.product.reduce.to_all ? 0 : plan.product.units.units()};
  if (plan.product.reduce.marked) plan.product.reduce.marked_begin = plan.sums.marked_end();
  return plan;
}

}  // namespace mkernel::kernels

// GEMM+RS on the cpu executor: threads play the CTAs of roles.cuh, on the same plan. See README.md.
#include <memory>
#include <optional>
#include <utility>

#include "kernels/cpu/gemm/tile_size.h"
#include "kernels/cpu/launch/gemm_operation.h"
#include "kernels/cpu/reduce/tile_reduce.h"
#include "kernels/ops/make.h"

namespace mkernel::kernels {
namespace {

class CpuGemmRs final : public CpuGemmOperation {
 public:
  CpuGemmRs(TileReducePlan plan, const GemmShape& shape, Topology topology)
      : CpuGemmOperation(OpKind::kGemmRs, shape, std::move(topology)), plan_(std::move(plan)) {}

  Requirements requirements() const override { return {plan_.workspace_bytes(), plan_.lanes()}; }

 private:
  void attach() override { reduce_.emplace(plan_, shape(), topology(), workspace(), endpoint()); }

  void launch(const GemmArguments& arguments, Launch& launch) override {
    OperandB b(gemm(), arguments.b);
    TileReduce::Work work(plan_);
    const auto sum = [&] {
      return reduce_->sum_units(
          [&](const SumUnit& unit, const std::byte* sums) {
            reduce_->store_unit(unit, sums, static_cast<std::byte*>(arguments.c));
          },
          work, launch);
    };
    launch.roles.start("intra_comm", sum);
    if (plan_.some_without_rows())
      launch.roles.start("intra_comm", [&] { return reduce_->exchange_empty(launch); });
    if (plan_.units.others > 0)
      launch.roles.start("inter_send", [&] { return reduce_->put_partials(launch); });
    for (int thread = 0; thread < launch.compute_threads; ++thread) {
      launch.roles.start("compute", [&, thread]() -> Status {
        MK_RETURN_IF_ERROR(b.widen_part(launch, thread));
        MK_RETURN_IF_ERROR(reduce_->multiply(gemm(), arguments.a, work, launch));
        return sum();
      });
    }
    (void)launch.roles.join();
  }

  const TileReducePlan plan_;
  std::optional<TileReduce> reduce_;
};

}  // namespace

Result<std::unique_ptr<GemmOperation>> make_cpu_gemm_rs(const GemmShape& shape, Topology topology,
                                                        std::uint32_t rank, TileReduceOptions options) {
  if (!options.tile) {
    options.tile = host_tile(shape, topology);
    options.reduce_ctas = 1;
  }
  auto plan = TileReducePlan::make(OpKind::kGemmRs, shape, topology, rank, kHostMachine, options);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<GemmOperation>(
      std::make_unique<CpuGemmRs>(std::move(plan).value(), shape, std::move(topology)));
}

}  // namespace mkernel::kernels

// GEMM+RS on the cpu executor: threads play the CTAs of roles.cuh, on the same plan. See README.md.
#include <memory>
#include <optional>
#include <utility>

#include "kernels/cpu/launch/gemm_operation.h"
#include "kernels/cpu/reduce/tile_reduce.h"
#include "kernels/ops/gemm_rs/sums_into_c.h"
#include "kernels/ops/make.h"

namespace mkernel::kernels {
namespace {

class CpuSumsIntoC final : public CpuGemmOperation {
 public:
  CpuSumsIntoC(OpKind kind, TileReducePlan plan, const GemmShape& shape, Topology topology)
      : CpuGemmOperation(kind, shape, std::move(topology)), plan_(std::move(plan)) {}

  Requirements requirements() const override {
    return {plan_.word_bytes(), plan_.data_bytes(), plan_.lanes()};
  }

 private:
  void attach() override { reduce_.emplace(plan_, shape(), topology(), workspace(), lent(), endpoint()); }

  void launch(const GemmArguments& arguments, Launch& launch) override {
    OperandB b(gemm(), arguments.b);
    TileReduce::Work work(plan_);
    const auto sum = [&](int) {
      return reduce_->sum_units(
          [&](const SumUnit& unit, const std::byte* sums) {
            reduce_->store_unit(unit, sums, static_cast<std::byte*>(arguments.c));
          },
          work, launch);
    };
    reduce_->start(gemm(), b, arguments.a, work, sum, launch);
    (void)launch.roles.join();
  }

  const TileReducePlan plan_;
  std::optional<TileReduce> reduce_;
};

}  // namespace

std::unique_ptr<GemmOperation> make_cpu_sums_into_c(OpKind kind, TileReducePlan plan, const GemmShape& shape,
                                                    Topology topology) {
  return std::make_unique<CpuSumsIntoC>(kind, std::move(plan), shape, std::move(topology));
}

Result<std::unique_ptr<GemmOperation>> make_cpu_gemm_rs(const GemmShape& shape, Topology topology,
                                                        std::uint32_t rank,
                                                        const TileReduceOptions& options) {
  auto plan = TileReducePlan::make(OpKind::kGemmRs, shape, topology, rank, kHostMachine,
                                   host_options(options, shape, topology));
  if (!plan.ok()) return plan.status();
  return make_cpu_sums_into_c(OpKind::kGemmRs, std::move(plan).value(), shape, std::move(topology));
}

}  // namespace mkernel::kernels

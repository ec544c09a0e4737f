// GEMM+RS on the cpu executor.
#include <memory>
#include <utility>

#include "kernels/cpu/memory/convert.h"
#include "kernels/ops/gemm_rs/plan.h"
#include "kernels/ops/gemm_rs/roles.h"
#include "kernels/ops/make.h"

namespace mkernel::kernels {
namespace gemm_rs {

Status compute(ComputeState& state, const Launch& launch, int thread) {
  const GemmShape& shape = state.shape;
  const ReducePlan& plan = state.reduce.plan();
  const auto scratch =
      std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(plan.grid(0).tile_rows * shape.k));
  const auto* a = static_cast<const std::uint16_t*>(state.arguments.a);  // [m, k]
  const auto& order = state.reduce.compute_order();

  MK_RETURN_IF_ERROR(state.b.widen_part(launch, thread));
  for (std::size_t i = state.next++; i < order.size(); i = state.next++) {
    const OwnedTile owned = order[i];
    const Tile tile = plan.grid(owned.owner).tile(owned.tile);
    const auto world = static_cast<std::int64_t>(plan.grids().size());
    const std::int64_t row = block_range(shape.m, world, owned.owner).begin + tile.rows.begin;
    const Result<float*> slot = state.reduce.acquire_slot(launch, owned);
    if (!slot.ok()) return slot.status();
    state.gemm.tile(a + row * shape.k, tile.rows.size(), tile.columns, scratch.get(), slot.value(),
                    tile.columns.size());
    state.reduce.publish_slot(launch, owned);
  }
  return {};
}

Status inter_reduce(Reduce& reduce, const GemmShape& shape, const GemmArguments& arguments,
                    std::uint32_t rank, const Launch& launch) {
  auto* c = static_cast<std::uint16_t*>(arguments.c);  // [m_rank, n]
  const auto store = [&](std::int64_t index, const float* sum) {
    const Tile tile = reduce.plan().grid(rank).tile(index);
    for (std::int64_t row = 0; row < tile.rows.size(); ++row) {
      narrow(shape.dtype, sum + row * tile.columns.size(),
             c + (tile.rows.begin + row) * shape.n + tile.columns.begin,
             static_cast<std::size_t>(tile.columns.size()));
    }
  };
  return reduce.sum_world(launch, store, [](std::int64_t) { return Status(); });
}

}  // namespace gemm_rs

namespace {

class GemmRs final : public CpuGemmOperation {
 public:
  GemmRs(GemmRsPlan plan, const GemmShape& shape, Topology topology)
      : CpuGemmOperation(OpKind::kGemmRs, shape, std::move(topology)), plan_(std::move(plan)) {}

  Requirements requirements() const override { return {plan_.workspace_bytes(), GemmRsPlan::kLanes}; }

 private:
  void attach() override {
    reduce_ = std::make_unique<Reduce>(plan_.reduce(), topology(), shape().dtype, group(), workspace(),
                                       endpoint(), 0);
  }

  void launch(const GemmArguments& arguments, Launch& launch) override {
    OperandB b(gemm(), arguments.b);
    gemm_rs::ComputeState state{shape(), arguments, gemm(), *reduce_, b};
    launch.roles.start("intra_comm", [&] { return reduce_->sum_node(launch); });
    if (topology().nodes() > 1) {
      launch.roles.start("inter_send", [&] { return reduce_->send_partials(launch); });
    }
    launch.roles.start("inter_reduce", [&] {
      return gemm_rs::inter_reduce(*reduce_, shape(), arguments, group().rank(), launch);
    });
    for (int thread = 0; thread < launch.compute_threads; ++thread) {
      launch.roles.start("compute", [&, thread] { return gemm_rs::compute(state, launch, thread); });
    }
    (void)launch.roles.join();
  }

  const GemmRsPlan plan_;
  std::unique_ptr<Reduce> reduce_;
};

}  // namespace

Result<std::unique_ptr<GemmOperation>> make_cpu_gemm_rs(const GemmShape& shape, Topology topology,
                                                        const ReduceOptions& options) {
  auto plan = GemmRsPlan::make(shape, topology, options);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<GemmOperation>(
      std::make_unique<GemmRs>(std::move(plan).value(), shape, std::move(topology)));
}

}  // namespace mkernel::kernels

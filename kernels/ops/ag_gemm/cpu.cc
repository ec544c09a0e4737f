// AG+GEMM on the cpu executor.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/cpu/memory/convert.h"
#include "kernels/ops/ag_gemm/roles.h"
#include "kernels/ops/make.h"

namespace mkernel::kernels {
namespace ag_gemm {

Status compute(State& state, const Launch& launch, int thread) {
  const GemmShape& shape = state.shape;
  const TileGrid& first = state.plan.grid(0);
  const auto tile_rows = static_cast<std::size_t>(std::min(first.tile_rows, shape.m));
  const auto a_wide = std::make_unique_for_overwrite<float[]>(tile_rows * static_cast<std::size_t>(shape.k));
  const auto product = std::make_unique_for_overwrite<float[]>(
      tile_rows * static_cast<std::size_t>(std::min(first.tile_columns, shape.n)));
  auto* c = static_cast<std::uint16_t*>(state.arguments.c);  // [m, n]

  MK_RETURN_IF_ERROR(state.b.widen_part(launch, thread));
  while (true) {
    auto next = state.order.next(launch, "compute");
    if (!next.ok()) return next.status();
    if (!next->has_value()) return {};
    const auto [source, index] = **next;
    const Tile tile = state.plan.grid(source).tile(index);
    // The source's stream is its rows: dense, [m_source, k].
    const auto* rows = reinterpret_cast<const std::uint16_t*>(state.gather.chunk(launch, source, 0));
    state.gemm.tile(rows + tile.rows.begin * shape.k, tile.rows.size(), tile.columns, a_wide.get(),
                    product.get(), tile.columns.size());
    for (std::int64_t row = 0; row < tile.rows.size(); ++row) {
      const std::int64_t c_row = state.plan.rows(source).begin + tile.rows.begin + row;
      narrow(shape.dtype, product.get() + row * tile.columns.size(), c + c_row * shape.n + tile.columns.begin,
             static_cast<std::size_t>(tile.columns.size()));
    }
  }
}

Status intra_comm(State& state, const Launch& launch) {
  const std::uint32_t rank = state.gather.rank();
  const auto* a = static_cast<const std::byte*>(state.arguments.a);  // [m_rank, k]
  for (std::uint64_t i = 0; i < state.plan.gather().chunks(rank); ++i) {
    const GatherPlan::Chunk chunk = state.plan.gather().chunk(rank, i);
    const std::uint64_t before = chunk.offset - state.plan.gather().chunk(rank, 0).offset;
    if (chunk.bytes > 0) std::memcpy(state.gather.chunk(launch, rank, i), a + before, chunk.bytes);
    state.gather.publish(launch, i);
  }
  return state.gather.wait_all(launch, "intra_comm");
}

Status inter_send(State& state, const Launch& launch) {
  for (std::uint64_t i = 0; i < state.plan.gather().chunks(state.gather.rank()); ++i) {
    MK_RETURN_IF_ERROR(state.gather.wait_own(launch, i, "inter_send"));
    MK_RETURN_IF_ERROR(state.gather.send(launch, i, "inter_send"));
  }
  return {};
}

}  // namespace ag_gemm

namespace {

class AgGemm final : public CpuGemmOperation {
 public:
  AgGemm(AgGemmPlan plan, const GemmShape& shape, Topology topology)
      : CpuGemmOperation(OpKind::kAgGemm, shape, std::move(topology)), plan_(std::move(plan)) {}

  Requirements requirements() const override { return {plan_.workspace_bytes(), AgGemmPlan::kLanes}; }

 private:
  void attach() override {
    gather_ = std::make_unique<Gather>(plan_.gather(), topology(), group(), workspace(), endpoint(), 0, 0);
  }

  void launch(const GemmArguments& arguments, Launch& launch) override {
    OperandB b(gemm(), arguments.b);
    ArrivalOrder order(
        *gather_, topology(), [this](std::uint32_t source) { return plan_.grid(source).tiles(); },
        [this](std::uint32_t source, std::int64_t tile) { return plan_.chunks_needed(source, tile); });
    ag_gemm::State state{plan_, shape(), arguments, gemm(), *gather_, b, order};
    launch.roles.start("intra_comm", [&] { return ag_gemm::intra_comm(state, launch); });
    if (topology().nodes() > 1) {
      launch.roles.start("inter_send", [&] { return ag_gemm::inter_send(state, launch); });
      launch.roles.start("inter_recv", [&] { return gather_->relay(launch); });
    }
    for (int thread = 0; thread < launch.compute_threads; ++thread) {
      launch.roles.start("compute", [&, thread] { return ag_gemm::compute(state, launch, thread); });
    }
    (void)launch.roles.join();
  }

  const AgGemmPlan plan_;
  std::unique_ptr<Gather> gather_;
};

}  // namespace

Result<std::unique_ptr<GemmOperation>> make_cpu_ag_gemm(const GemmShape& shape, Topology topology,
                                                        const AgGemmOptions& options) {
  auto plan = AgGemmPlan::make(shape, topology, options);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<GemmOperation>(
      std::make_unique<AgGemm>(std::move(plan).value(), shape, std::move(topology)));
}

}  // namespace mkernel::kernels

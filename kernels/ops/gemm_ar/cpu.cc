// GEMM+AR on the cpu executor.
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/cpu/memory/convert.h"
#include "kernels/ops/gemm_ar/roles.h"
#include "kernels/ops/make.h"

namespace mkernel::kernels {
namespace gemm_ar {
namespace {

/// One finished tile of `owner`, packed in its stream, to its place in c.
void unpack(const State& state, const Launch& launch, std::uint32_t owner, std::int64_t index) {
  const TileGrid& grid = state.plan.reduce().grid(owner);
  const Tile tile = grid.tile(index);
  const auto* stream = reinterpret_cast<const std::uint16_t*>(state.gather.chunk(launch, owner, 0));
  const std::uint16_t* from = stream + grid.packed_offset(index);
  auto* c = static_cast<std::uint16_t*>(state.arguments.c);  // [m, n]
  for (std::int64_t row = 0; row < tile.rows.size(); ++row) {
    const std::int64_t c_row = state.plan.rows(owner).begin + tile.rows.begin + row;
    std::memcpy(c + c_row * state.shape.n + tile.columns.begin, from + row * tile.columns.size(),
                static_cast<std::size_t>(tile.columns.size()) * sizeof *c);
  }
}

}  // namespace

Status compute(State& state, const Launch& launch, int thread) {
  MK_RETURN_IF_ERROR(gemm_rs::compute(state.multiply, launch, thread));
  while (true) {
    auto next = state.order.next(launch, "compute");
    if (!next.ok()) return next.status();
    if (!next->has_value()) return {};
    const auto [owner, chunk] = **next;
    const Range tiles = state.plan.reduce().chunks(owner).chunk(chunk);
    for (std::int64_t tile = tiles.begin; tile < tiles.end; ++tile) unpack(state, launch, owner, tile);
  }
}

Status inter_reduce(State& state, const Launch& launch) {
  const std::uint32_t rank = state.gather.rank();
  const TileGrid& grid = state.plan.reduce().grid(rank);
  auto* stream = reinterpret_cast<std::uint16_t*>(state.gather.chunk(launch, rank, 0));
  const auto store = [&](std::int64_t tile, const float* sum) {
    narrow(state.shape.dtype, sum, stream + grid.packed_offset(tile),
           static_cast<std::size_t>(grid.tile(tile).elements()));
  };
  const auto hand_on = [&](std::int64_t chunk) {
    state.gather.publish(launch, static_cast<std::uint64_t>(chunk));
    return state.gather.send(launch, static_cast<std::uint64_t>(chunk), "inter_reduce");
  };
  MK_RETURN_IF_ERROR(state.reduce.sum_world(launch, store, hand_on));
  return state.gather.wait_all(launch, "inter_reduce");
}

}  // namespace gemm_ar

namespace {

/// The gather's waits come after the three stages of the reduction.
constexpr int kAfterReduce = 3;

class GemmAr final : public CpuGemmOperation {
 public:
  GemmAr(GemmArPlan plan, const GemmShape& shape, Topology topology)
      : CpuGemmOperation(OpKind::kGemmAr, shape, std::move(topology)), plan_(std::move(plan)) {}

  Requirements requirements() const override { return {plan_.workspace_bytes(), GemmArPlan::kLanes}; }

 private:
  void attach() override {
    reduce_ = std::make_unique<Reduce>(plan_.reduce(), topology(), shape().dtype, group(), workspace(),
                                       endpoint(), GemmArPlan::kReduceLane);
    gather_ = std::make_unique<Gather>(plan_.gather(), topology(), group(), workspace(), endpoint(),
                                       GemmArPlan::kGatherLane, kAfterReduce);
  }

  void launch(const GemmArguments& arguments, Launch& launch) override {
    OperandB b(gemm(), arguments.b);
    gemm_rs::ComputeState multiply{shape(), arguments, gemm(), *reduce_, b};
    ArrivalOrder order(
        *gather_, topology(), [this](std::uint32_t owner) { return plan_.reduce().chunks(owner).chunks(); },
        [](std::uint32_t, std::int64_t chunk) { return static_cast<std::uint64_t>(chunk) + 1; });
    gemm_ar::State state{plan_, shape(), arguments, *reduce_, *gather_, order, multiply};
    launch.roles.start("intra_comm", [&] { return reduce_->sum_node(launch); });
    launch.roles.start("inter_reduce", [&] { return gemm_ar::inter_reduce(state, launch); });
    if (topology().nodes() > 1) {
      launch.roles.start("inter_send", [&] { return reduce_->send_partials(launch); });
      launch.roles.start("inter_recv", [&] { return gather_->relay(launch); });
    }
    for (int thread = 0; thread < launch.compute_threads; ++thread) {
      launch.roles.start("compute", [&, thread] { return gemm_ar::compute(state, launch, thread); });
    }
    (void)launch.roles.join();
  }

  const GemmArPlan plan_;
  std::unique_ptr<Reduce> reduce_;
  std::unique_ptr<Gather> gather_;
};

}  // namespace

Result<std::unique_ptr<GemmOperation>> make_cpu_gemm_ar(const GemmShape& shape, Topology topology,
                                                        const ReduceOptions& options) {
  auto plan = GemmArPlan::make(shape, topology, options);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<GemmOperation>(
      std::make_unique<GemmAr>(std::move(plan).value(), shape, std::move(topology)));
}

}  // namespace mkernel::kernels

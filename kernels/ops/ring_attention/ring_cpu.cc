// Ring attention on the cpu executor: threads play the CTAs of ring_roles.cuh, on the same plan. See
// README.md.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cpu/launch/binding.h"
#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/gather_cpu.h"
#include "kernels/ops/ring_attention/plan.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/cuts.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

/// The compute threads of one launch.
class RingAttentionLaunch {
 public:
  RingAttentionLaunch(const RingPlan& plan, const CpuKvGather& gathered, const AttentionArguments& arguments,
                      const Launch& launch)
      : plan_(plan), gathered_(gathered), arguments_(arguments), launch_(launch), work_(plan.tasks.tasks()) {}

  Status compute() {
    AttentionScratch scratch(plan_.shape.head_dim);
    for (std::int32_t i = work_.next(); i < work_.all() && !launch_.roles.stop(); i = work_.next())
      MK_RETURN_IF_ERROR(sweep(plan_.tasks.place(i), scratch));
    return {};
  }

 private:
  Positions positions(std::int32_t source) const {
    return held_positions(plan_.shape.sequence, plan_.shape.causal, plan_.gather.world, source);
  }

  /// A tile of queries meets all keys.
  Status sweep(const AttentionTasks::Place& place, AttentionScratch& scratch) const {
    const AttentionShape& shape = plan_.shape;
    const Positions held = positions(plan_.gather.rank);
    const Range rows = plan_.query_rows(place.tile);
    const auto of_tile = [&](const void* tensor) {
      return head_rows(shape, tensor, shape.heads, held.size(), place.batch, place.head).from(rows.begin);
    };
    const auto kv_head = static_cast<std::int32_t>(place.batch * shape.kv_heads + place.head / plan_.group());
    AttentionTile state(held.at(rows.begin), rows.size(), shape.head_dim, shape.causal);
    state.begin(of_tile(arguments_.q), attention_scale(shape));
    for (std::int32_t step = 0; step < plan_.gather.world; ++step)
      MK_RETURN_IF_ERROR(attend(plan_.gather.source(step), kv_head, state, scratch));
    if (arguments_.lse != nullptr) {
      const std::int64_t head = place.batch * shape.heads + place.head;
      state.log_sum_exp(arguments_.lse + head * held.size() + rows.begin);
    }
    const HeadRows out = of_tile(arguments_.out);
    state.finish(const_cast<void*>(out.data), out.stride, shape.dtype);
    return {};
  }

  /// Chunk by chunk, as they come.
  Status attend(std::int32_t source, std::int32_t head, AttentionTile& state,
                AttentionScratch& scratch) const {
    const KvGatherPlan& gather = plan_.gather;
    const Positions held = positions(source);
    const HeadRows keys = gathered_.rows(source, 0, head), values = gathered_.rows(source, 1, head);
    for (std::int32_t chunk = gather.first_chunk(head); chunk < gather.first_chunk(head + 1); ++chunk) {
      const std::int64_t row = gather.chunk_row(chunk);
      const Positions here = held.slice({row, row + gather.chunk_rows(source, chunk)});
      if (state.hides(here)) continue;
      MK_RETURN_IF_ERROR(gathered_.wait(source, chunk, "compute"));
      state.attend(keys.from(row), values.from(row), here, scratch);
    }
    return {};
  }

  const RingPlan& plan_;
  const CpuKvGather& gathered_;
  const AttentionArguments& arguments_;
  const Launch& launch_;
  WorkCounter work_;
};

class CpuRingAttention final : public AttentionOperation {
 public:
  CpuRingAttention(RingPlan plan, Topology topology)
      : plan_(std::move(plan)), topology_(std::move(topology)) {}

  OpKind kind() const override { return OpKind::kRingAttention; }
  Executor executor() const override { return Executor::kCpu; }
  std::string signature() const override { return attention_signature(OpKind::kRingAttention, plan_.shape); }
  Requirements requirements() const override {
    if (plan_.gather.world == 1) return {};
    return {plan_.gather.word_bytes(), plan_.gather.data_bytes(), plan_.lanes()};
  }
  std::uint64_t wire_bytes() const override { return binding_.wire_bytes(); }

  Status bind(const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
              std::uint32_t first_lane) override {
    return binding_.bind(requirements(), topology_, group, workspace, lent, first_lane);
  }

  Status run(const AttentionArguments& arguments, const ExecutorOptions& options) override {
    MK_RETURN_IF_ERROR(binding_.ready());
    const std::int64_t positions = plan_.gather.positions(plan_.gather.rank);
    MK_RETURN_IF_ERROR(check_attention_operands(OpKind::kRingAttention, arguments, positions, positions));
    return binding_.launch(topology_, options, [&](Launch& launch) {
      const CpuKvGather gathered(plan_, topology_, binding_.workspace(), binding_.lent(), binding_.endpoint(),
                                 arguments.k, arguments.v, launch);
      RingAttentionLaunch roles(plan_, gathered, arguments, launch);
      gathered.start(launch);
      for (int thread = 0; thread < launch.compute_threads; ++thread)
        launch.roles.start("compute", [&roles] { return roles.compute(); });
      (void)launch.roles.join();
    });
  }

 private:
  const RingPlan plan_;
  const Topology topology_;
  Binding binding_{name_of(OpKind::kRingAttention)};
};

}  // namespace

Result<std::unique_ptr<AttentionOperation>> make_cpu_ring_attention(const AttentionShape& shape,
                                                                    const Topology& topology,
                                                                    std::uint32_t rank) {
  MK_RETURN_IF_ERROR(RingPlan::check(OpKind::kRingAttention, shape, topology));
  RingPlan plan = RingPlan::make(shape, topology, rank);
  cut_on_cpu(plan, kChunkBytes);
  return std::unique_ptr<AttentionOperation>(std::make_unique<CpuRingAttention>(std::move(plan), topology));
}

}  // namespace mkernel::kernels

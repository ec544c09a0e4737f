// Attention of a rank alone on the cpu executor: threads take one tile of queries of a head after the other.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/attention/blockwise.h"
#include "kernels/cpu/launch/binding.h"
#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/attention/plan.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/attention_sequences.h"

namespace mkernel::kernels {
namespace {

/// One launch.
class AttentionLaunch {
 public:
  AttentionLaunch(const AttentionPlan& plan, const AttentionArguments& arguments, const Launch& launch)
      : plan_(plan),
        arguments_(arguments),
        launch_(launch),
        slots_(plan.slots(plan.lengths(arguments))),
        work_(slots_.back().tasks_before) {}

  /// A compute thread.
  Status compute() {
    AttentionScratch scratch(plan_.shape.head_dim);
    const auto heads = static_cast<std::int32_t>(plan_.shape.heads);
    const auto count = static_cast<std::int32_t>(slots_.size()) - 1;
    for (std::int32_t i = work_.next(); i < work_.all() && !launch_.roles.stop(); i = work_.next()) {
      const auto at = static_cast<std::size_t>(attention_slot_of(slots_.data(), count, i));
      const AttentionSlot& slot = slots_[at];
      attend(slot.sequence, attention_slot_tile(slot, heads, i - slot.tasks_before), scratch);
    }
    return {};
  }

 private:
  void attend(const AttentionSequence& sequence, const AttentionHeadTile& at,
              AttentionScratch& scratch) const {
    const AttentionShape& shape = plan_.shape;
    const std::int64_t begin = std::int64_t{at.tile} * kAttentionTile;
    const std::int64_t rows = std::min(kAttentionTile, sequence.queries - begin);
    const auto of_queries = [&](const void* tensor) {
      return head_rows(shape, tensor, shape.heads, 0, 0, at.head).from(sequence.query_first + begin);
    };
    const auto of_keys = [&](const void* tensor) {
      return head_rows(shape, tensor, shape.kv_heads, 0, 0, at.head / plan_.group()).from(sequence.key_first);
    };
    // The last query stands where the last key does.
    AttentionTile state(begin + sequence.keys - sequence.queries, rows, shape.head_dim, plan_.window());
    state.begin(of_queries(arguments_.q), attention_scale(shape));
    state.attend(of_keys(arguments_.k), of_keys(arguments_.v), {{Range{0, sequence.keys}, Range{}}}, scratch);
    if (arguments_.lse != nullptr)
      state.log_sum_exp(arguments_.lse + plan_.lse_at(sequence, at.head) + begin);
    const HeadRows out = of_queries(arguments_.out);
    state.finish(const_cast<void*>(out.data), out.stride, shape.dtype);
  }

  const AttentionPlan& plan_;
  const AttentionArguments& arguments_;
  const Launch& launch_;
  const std::vector<AttentionSlot> slots_;
  WorkCounter work_;
};
static_assert(kAttentionTile == kAttentionTileQueries);

class CpuAttention final : public AttentionOperation {
 public:
  CpuAttention(AttentionPlan plan, Topology topology)
      : plan_(std::move(plan)), topology_(std::move(topology)) {}

  OpKind kind() const override { return OpKind::kAttention; }
  Executor executor() const override { return Executor::kCpu; }
  std::string signature() const override { return plan_.signature(); }
  Requirements requirements() const override { return {}; }
  std::uint64_t wire_bytes() const override { return 0; }
  bool refused() const override { return refused_; }

  Status bind(const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
              std::uint32_t first_lane) override {
    return binding_.bind(requirements(), topology_, group, workspace, lent, first_lane);
  }

  Status run(const AttentionArguments& arguments, const ExecutorOptions& options) override {
    refused_ = false;
    MK_RETURN_IF_ERROR(binding_.ready());
    MK_RETURN_IF_ERROR(plan_.check(arguments));
    const Status refusal = plan_.refuse(first_bad_attention_length(plan_.lengths(arguments)));
    refused_ = !refusal.ok();
    MK_RETURN_IF_ERROR(refusal);
    return binding_.launch(topology_, options, [&](Launch& launch) {
      AttentionLaunch roles(plan_, arguments, launch);
      for (int thread = 0; thread < launch.compute_threads; ++thread)
        launch.roles.start("compute", [&roles] { return roles.compute(); });
      (void)launch.roles.join();
    });
  }

 private:
  const AttentionPlan plan_;
  const Topology topology_;
  Binding binding_{"attention"};
  bool refused_ = false;
};

}  // namespace

Result<std::unique_ptr<AttentionOperation>> make_cpu_attention(const AttentionShape& shape,
                                                               const Topology& topology) {
  auto plan = AttentionPlan::make(shape);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<AttentionOperation>(
      std::make_unique<CpuAttention>(std::move(plan).value(), topology));
}

}  // namespace mkernel::kernels

// Attention of a rank alone on the cpu executor: threads take one tile of queries of a head after the other.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/attention/blockwise.h"
#include "kernels/cpu/launch/alone_operation.h"
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

  static Status refuse(const AttentionPlan& plan, const AttentionArguments& arguments) {
    return plan.refuse(first_bad_attention_length(plan.lengths(arguments)));
  }

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

using CpuAttention = CpuAloneOperation<AttentionArguments, AttentionPlan, AttentionLaunch>;

}  // namespace

Result<std::unique_ptr<AttentionOperation>> make_cpu_attention(const AttentionShape& shape,
                                                               const Topology& topology) {
  auto plan = AttentionPlan::make(shape);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<AttentionOperation>(
      std::make_unique<CpuAttention>(OpKind::kAttention, std::move(plan).value(), topology));
}

}  // namespace mkernel::kernels

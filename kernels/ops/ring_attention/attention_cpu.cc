// Attention of a rank alone on the cpu executor: threads take one tile of queries of a head after the other.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cpu/attention/blockwise.h"
#include "kernels/cpu/launch/binding.h"
#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/attention_plan.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/cuts.h"

namespace mkernel::kernels {
namespace {

/// One launch.
class AttentionLaunch {
 public:
  AttentionLaunch(const AttentionPlan& plan, const AttentionArguments& arguments, const Launch& launch)
      : plan_(plan),
        arguments_(arguments),
        launch_(launch),
        tiles_(ceil_div(plan.shape.sequence, kAttentionTile)),
        work_(static_cast<std::int32_t>(plan.shape.batch * plan.shape.heads * tiles_)) {}

  /// A compute thread.
  Status compute() {
    AttentionScratch scratch(plan_.shape.head_dim);
    for (std::int64_t i = work_.next(); i < work_.all() && !launch_.roles.stop(); i = work_.next()) {
      const std::int64_t head = i / tiles_ % plan_.shape.heads;
      attend(i / tiles_ / plan_.shape.heads, head, tiles_ - 1 - i % tiles_, scratch);
    }
    return {};
  }

 private:
  void attend(std::int64_t batch, std::int64_t head, std::int64_t tile, AttentionScratch& scratch) const {
    const AttentionShape& shape = plan_.shape;
    const std::int64_t begin = tile * kAttentionTile;
    const std::int64_t rows = std::min(kAttentionTile, shape.sequence - begin);
    const auto of_queries = [&](const void* tensor) {
      return head_rows(shape, tensor, shape.heads, shape.sequence, batch, head).from(begin);
    };
    const auto of_keys = [&](const void* tensor) {
      return head_rows(shape, tensor, shape.kv_heads, shape.keys, batch, head / plan_.group());
    };
    // The last query stands where the last key does.
    AttentionTile state(begin + shape.keys - shape.sequence, rows, shape.head_dim, shape.causal);
    state.begin(of_queries(arguments_.q), attention_scale(shape));
    state.attend(of_keys(arguments_.k), of_keys(arguments_.v), {{Range{0, shape.keys}, Range{}}}, scratch);
    if (arguments_.lse != nullptr)
      state.log_sum_exp(arguments_.lse + (batch * shape.heads + head) * shape.sequence + begin);
    const HeadRows out = of_queries(arguments_.out);
    state.finish(const_cast<void*>(out.data), out.stride, shape.dtype);
  }

  const AttentionPlan& plan_;
  const AttentionArguments& arguments_;
  const Launch& launch_;
  const std::int64_t tiles_;
  WorkCounter work_;
};

class CpuAttention final : public AttentionOperation {
 public:
  CpuAttention(AttentionPlan plan, Topology topology)
      : plan_(std::move(plan)), topology_(std::move(topology)) {}

  OpKind kind() const override { return OpKind::kAttention; }
  Executor executor() const override { return Executor::kCpu; }
  std::string signature() const override { return plan_.signature(); }
  Requirements requirements() const override { return {}; }
  std::uint64_t wire_bytes() const override { return 0; }

  Status bind(const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
              std::uint32_t first_lane) override {
    return binding_.bind(requirements(), topology_, group, workspace, lent, first_lane);
  }

  Status run(const AttentionArguments& arguments, const ExecutorOptions& options) override {
    MK_RETURN_IF_ERROR(binding_.ready());
    MK_RETURN_IF_ERROR(plan_.check(arguments));
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

// The cpu executor of ring attention: role threads over the roles of roles.h.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kernels/cpu/launch/binding.h"
#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/roles.h"
#include "kernels/ops/ring_attention/shape.h"

namespace mkernel::kernels {
namespace {

class RingAttentionOperation : public AttentionOperation {
 public:
  explicit RingAttentionOperation(RingAttentionPlan plan) : plan_(std::move(plan)) {}

  OpKind kind() const override { return OpKind::kRingAttention; }
  Executor executor() const override { return Executor::kCpu; }
  std::string signature() const override { return plan_.signature(); }
  Requirements requirements() const override { return plan_.requirements(); }
  std::uint64_t wire_bytes() const override { return binding_.wire_bytes(); }

  Status bind(const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
              std::uint32_t first_lane) override {
    MK_RETURN_IF_ERROR(binding_.bind(requirements(), plan_.topology(), group, workspace, lent, first_lane));
    ring_.emplace(plan_, group, binding_.workspace(), binding_.endpoint());
    return {};
  }

  Status run(const AttentionArguments& arguments, const ExecutorOptions& options) override {
    MK_RETURN_IF_ERROR(binding_.ready());
    const std::int64_t positions = plan_.positions(binding_.group().rank()).size();
    MK_RETURN_IF_ERROR(check_attention_operands(kind(), arguments, positions, positions));
    return binding_.launch(plan_.topology(), options, [&](Launch& launch) { start(launch, arguments); });
  }

 private:
  void start(Launch& launch, const AttentionArguments& arguments);

  const RingAttentionPlan plan_;
  Binding binding_{"ring_attention"};
  std::optional<RingAttention> ring_;
};

void RingAttentionOperation::start(Launch& launch, const AttentionArguments& arguments) {
  ring_->begin(launch.compute_threads);
  launch.roles.start("intra_comm", [&] { return ring_->load(launch, arguments); });
  if (plan_.steps() > 1) {
    launch.roles.start("inter_send", [&] { return ring_->send(launch); });
    launch.roles.start("inter_recv", [&] { return ring_->receive(launch); });
  }
  for (int thread = 0; thread < launch.compute_threads; ++thread) {
    launch.roles.start("compute", [&, thread] { return ring_->compute(launch, arguments, thread); });
  }
}

}  // namespace

Result<std::unique_ptr<AttentionOperation>> make_cpu_ring_attention(const AttentionShape& shape,
                                                                    const Topology& topology) {
  auto plan = RingAttentionPlan::make(shape, topology);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<AttentionOperation>(
      std::make_unique<RingAttentionOperation>(std::move(plan).value()));
}

}  // namespace mkernel::kernels

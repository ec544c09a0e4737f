// The mixture-of-experts layer on the cpu executor: threads play the CTAs, on the plan. See README.md.
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "kernels/cpu/launch/binding.h"
#include "kernels/ops/make.h"
#include "kernels/ops/moe_dispatch_gemm/roles.h"

namespace mkernel::kernels {
namespace {

class CpuMoe final : public MoeOperation {
 public:
  explicit CpuMoe(MoePlan plan) : plan_(std::move(plan)) {}

  OpKind kind() const override { return OpKind::kMoeDispatchGemm; }
  Executor executor() const override { return Executor::kCpu; }
  std::string signature() const override { return plan_.signature(); }
  Requirements requirements() const override { return plan_.requirements(); }
  std::uint64_t wire_bytes() const override { return binding_.wire_bytes(); }
  bool refused() const override { return refused_; }

  Status bind(const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
              std::uint32_t first_lane) override;
  Status run(const MoeArguments& arguments, const ExecutorOptions& options) override;

 private:
  Status check(const MoeArguments& arguments) const;
  void start(MoeLaunch& roles, Launch& launch) const;

  const MoePlan plan_;
  Binding binding_{"moe"};
  std::optional<ExpertLayer> layer_;
  bool refused_ = false;
};

Status CpuMoe::bind(const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
                    std::uint32_t first_lane) {
  try {
    if (!layer_.has_value()) layer_.emplace(plan_, group.rank());
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted, "moe: no memory for the weights of " +
                                                std::to_string(plan_.experts(group.rank()).size()) +
                                                " experts in fp32"};
  }
  return binding_.bind(requirements(), plan_.topology, group, workspace, lent, first_lane);
}

Status CpuMoe::check(const MoeArguments& arguments) const {
  const MoeShape& shape = plan_.shape;
  if (arguments.tokens < 0 || arguments.tokens > shape.max_tokens) {
    return {StatusCode::kInvalidArgument, "moe: tokens = " + std::to_string(arguments.tokens) +
                                              ", but it must be 0.." + std::to_string(shape.max_tokens)};
  }
  const bool tokens = arguments.tokens > 0;
  const bool experts = plan_.experts(binding_.group().rank()).size() > 0;
  const struct {
    const char* name;
    const void* data;
    bool needed;
  } operands[] = {{"x", arguments.x, tokens},
                  {"topk", arguments.topk, tokens},
                  {"weights", arguments.weights, tokens},
                  {"y", arguments.y, tokens},
                  {"w1", arguments.w1, experts},
                  {"w2", arguments.w2, experts && plan_.gated()}};
  for (const auto& [name, data, needed] : operands) {
    if (!needed || data != nullptr) continue;
    return {StatusCode::kInvalidArgument, std::string("moe: ") + name + " is null"};
  }
  if (arguments.w1_up != nullptr && !plan_.gated()) {
    return {StatusCode::kInvalidArgument,
            "moe: w1_up is given, but with intermediate = 0 there is no second half of w1"};
  }
  return {};
}

Status CpuMoe::run(const MoeArguments& arguments, const ExecutorOptions& options) {
  refused_ = false;
  MK_RETURN_IF_ERROR(binding_.ready());
  MK_RETURN_IF_ERROR(check(arguments));
  std::optional<MoeLaunch> roles;  // outlives the threads of the launch
  MK_RETURN_IF_ERROR(binding_.launch(plan_.topology, options, [&](Launch& launch) {
    roles.emplace(plan_, binding_.workspace(), binding_.endpoint(), *layer_, arguments, launch);
    start(*roles, launch);
  }));
  refused_ = !roles->refusal().ok();
  return roles->refusal();
}

void CpuMoe::start(MoeLaunch& roles, Launch& launch) const {
  for (std::int32_t number = 0; number < plan_.dispatch_ctas; ++number)
    launch.roles.start("intra_comm", [&roles, number] { return roles.dispatch(number); });
  if (plan_.topology.nodes() > 1) {
    launch.roles.start("inter_recv", [&roles] { return roles.forward_counts(); });
    launch.roles.start("inter_send", [&roles] { return roles.send(); });
  }
  for (int thread = 0; thread < launch.compute_threads; ++thread)
    launch.roles.start("compute", [&roles, thread] { return roles.compute(thread); });
}

}  // namespace

Result<std::unique_ptr<MoeOperation>> make_cpu_moe(const MoeShape& shape, const Topology& topology,
                                                   const MoeOptions& options) {
  auto plan = MoePlan::make(shape, topology, options);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<MoeOperation>(std::make_unique<CpuMoe>(std::move(plan).value()));
}

}  // namespace mkernel::kernels

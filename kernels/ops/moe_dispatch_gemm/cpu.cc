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
  void start(MoeLaunch& roles, Launch& launch) const;

  const MoePlan plan_;
  Binding binding_{"moe"};
  std::optional<ExpertLayer> layer_;
  std::atomic<bool> refused_ = false;
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

Status CpuMoe::run(const MoeArguments& arguments, const ExecutorOptions& options) {
  refused_ = false;
  MK_RETURN_IF_ERROR(binding_.ready());
  MK_RETURN_IF_ERROR(plan_.check(binding_.group().rank(), arguments));
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

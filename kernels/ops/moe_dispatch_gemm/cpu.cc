// The cpu executor of the mixture-of-experts layer: role threads over the roles of roles.h.
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

class MoeLayerOperation : public MoeOperation {
 public:
  explicit MoeLayerOperation(MoePlan plan) : plan_(std::move(plan)) {}

  OpKind kind() const override { return OpKind::kMoeDispatchGemm; }
  Executor executor() const override { return Executor::kCpu; }
  std::string signature() const override { return plan_.signature(); }
  Requirements requirements() const override { return plan_.requirements(); }
  std::uint64_t wire_bytes() const override { return binding_.wire_bytes(); }

  Status bind(const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
              std::uint32_t first_lane) override;
  Status run(const MoeArguments& arguments, const ExecutorOptions& options) override;

 private:
  Status check(const MoeArguments& arguments) const;
  void start(Launch& launch, const MoeArguments& arguments, const SendLists& lists);

  const MoePlan plan_;
  Binding binding_{"moe"};
  std::optional<ExpertLayer> layer_;
  std::optional<Moe> moe_;
};

Status MoeLayerOperation::bind(const GroupView& group, const SymmetricView& workspace,
                               const SymmetricView& lent, std::uint32_t first_lane) {
  try {
    if (!layer_.has_value()) layer_.emplace(plan_, group.rank());
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted, "moe: no memory for the weights of " +
                                                std::to_string(plan_.experts(group.rank()).size()) +
                                                " experts in fp32"};
  }
  MK_RETURN_IF_ERROR(binding_.bind(requirements(), plan_.topology(), group, workspace, lent, first_lane));
  moe_.emplace(plan_, group, binding_.workspace(), binding_.endpoint());
  return {};
}

Status MoeLayerOperation::check(const MoeArguments& arguments) const {
  const MoeShape& shape = plan_.shape();
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
                  {"w2", arguments.w2, experts && shape.intermediate > 0}};
  for (const auto& [name, data, needed] : operands) {
    if (!needed || data != nullptr) continue;
    return {StatusCode::kInvalidArgument, std::string("moe: ") + name + " is null"};
  }
  return {};
}

Status MoeLayerOperation::run(const MoeArguments& arguments, const ExecutorOptions& options) {
  MK_RETURN_IF_ERROR(binding_.ready());
  MK_RETURN_IF_ERROR(check(arguments));
  // Bad routing is refused here, before anything is sent: the launch may be repeated with better input.
  const Result<SendLists> lists = route_tokens(plan_, arguments.tokens, arguments.topk);
  if (!lists.ok()) return lists.status();
  return binding_.launch(plan_.topology(), options,
                         [&](Launch& launch) { start(launch, arguments, lists.value()); });
}

void MoeLayerOperation::start(Launch& launch, const MoeArguments& arguments, const SendLists& lists) {
  moe_->begin();
  launch.roles.start("inter_send", [&] {
    MK_RETURN_IF_ERROR(moe_->dispatch(launch, arguments, lists));
    return moe_->combine(launch, arguments, lists);
  });
  launch.roles.start("intra_comm", [&] { return moe_->route(launch); });
  if (plan_.topology().nodes() > 1) {
    launch.roles.start("inter_recv", [&] { return moe_->receive(launch); });
    launch.roles.start("inter_reduce", [&] { return moe_->reduce(launch); });
  }
  for (int thread = 0; thread < launch.compute_threads; ++thread) {
    launch.roles.start("compute", [&, thread] { return moe_->compute(launch, arguments, *layer_, thread); });
  }
}

}  // namespace

Result<std::unique_ptr<MoeOperation>> make_cpu_moe(const MoeShape& shape, const Topology& topology) {
  auto plan = MoePlan::make(shape, topology);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<MoeOperation>(std::make_unique<MoeLayerOperation>(std::move(plan).value()));
}

}  // namespace mkernel::kernels

// The public handles of the operations.
#include <memory>
#include <string>
#include <utility>

#include "client/src/gpu_memory.h"
#include "client/src/guard.h"
#include "client/src/operation.h"
#include "kernels/base/lent_workspace.h"
#include "kernels/ops/make.h"
#include "mkernel/client.h"

namespace mkernel {
namespace {

/// What runs an operation of `group`: on the cuda executor the session's GPU and, over several nodes, its
/// rings.
Result<kernels::MakeOptions> make_options(client::GroupCore& group, Executor executor,
                                          const GemmPlanOptions& plan) {
  kernels::MakeOptions options{.executor = executor, .plan = plan};
  if (executor != Executor::kCuda) return options;
  const auto device = group.session().gpu();
  if (!device.ok()) return device.status();
  options.device = device.value();
  if (group.view().segment->node_count == 1) return options;
  auto rings = group.session().rings_on_gpu();
  if (!rings.ok()) return rings.status();
  options.rings = std::move(*rings);
  return options;
}

/// The state of an operation that `make` plans with the options it is given.
template <class Make>
Result<std::unique_ptr<client::OperationState>> create(const std::shared_ptr<client::GroupCore>& group,
                                                       Executor executor, const GemmPlanOptions& plan,
                                                       const Make& make) {
  return client::call(group->home(), [&]() -> Result<std::unique_ptr<client::OperationState>> {
    using Made = Result<std::unique_ptr<OperationBase>>;
    const auto plan_it = [&]() -> Made {
      const auto options = make_options(*group, executor, plan);
      if (!options.ok()) return options.status();
      auto made = make(options.value());
      if (!made.ok()) return made.status();
      return std::unique_ptr<OperationBase>(std::move(*made));
    };
    return client::OperationState::create(group, plan_it());
  });
}

}  // namespace

Result<Gemm> Group::gemm(OpKind kind, const GemmShape& shape, Executor executor,
                         const GemmPlanOptions& plan) {
  auto state = create(core_, executor, plan, [&](const kernels::MakeOptions& options) {
    return kernels::make_gemm(kind, shape, core_->view(), options);
  });
  if (!state.ok()) return state.status();
  return Gemm(std::move(*state));
}
Result<Gemm> Group::ag_gemm(const GemmShape& shape, Executor executor, const GemmPlanOptions& plan) {
  return gemm(OpKind::kAgGemm, shape, executor, plan);
}
Result<Gemm> Group::gemm_rs(const GemmShape& shape, Executor executor, const GemmPlanOptions& plan) {
  return gemm(OpKind::kGemmRs, shape, executor, plan);
}
Result<Gemm> Group::gemm_ar(const GemmShape& shape, Executor executor, const GemmPlanOptions& plan) {
  return gemm(OpKind::kGemmAr, shape, executor, plan);
}
Result<Moe> Group::moe(const MoeShape& shape, Executor executor, const GemmPlanOptions& plan) {
  auto state = create(core_, executor, plan, [&](const kernels::MakeOptions& options) {
    return kernels::make_moe(shape, core_->view(), options);
  });
  if (!state.ok()) return state.status();
  return Moe(std::move(*state));
}
Result<RingAttention> Group::ring_attention(const AttentionShape& shape, Executor executor,
                                            const GemmPlanOptions& plan) {
  auto state = create(core_, executor, plan, [&](const kernels::MakeOptions& options) {
    return kernels::make_attention(OpKind::kRingAttention, shape, core_->view(), options);
  });
  if (!state.ok()) return state.status();
  return RingAttention(std::move(*state));
}
Result<Attention> Group::attention(const AttentionShape& shape, Executor executor,
                                   const GemmPlanOptions& plan) {
  auto state = create(core_, executor, plan, [&](const kernels::MakeOptions& options) {
    return kernels::make_attention(OpKind::kAttention, shape, core_->view(), options);
  });
  if (!state.ok()) return state.status();
  return Attention(std::move(*state));
}
Result<AttentionBackward> Group::attention_backward(const AttentionShape& shape, Executor executor,
                                                    const GemmPlanOptions& plan) {
  auto state = create(core_, executor, plan, [&](const kernels::MakeOptions& options) {
    return kernels::make_attention_backward(OpKind::kAttentionBackward, shape, core_->view(), options);
  });
  if (!state.ok()) return state.status();
  return AttentionBackward(std::move(*state));
}
Result<RingAttentionBackward> Group::ring_attention_backward(const AttentionShape& shape, Executor executor,
                                                             const GemmPlanOptions& plan) {
  auto state = create(core_, executor, plan, [&](const kernels::MakeOptions& options) {
    return kernels::make_attention_backward(OpKind::kRingAttentionBackward, shape, core_->view(), options);
  });
  if (!state.ok()) return state.status();
  return RingAttentionBackward(std::move(*state));
}
Result<GroupedGemm> Group::grouped_gemm(const GroupedGemmShape& shape, Executor executor,
                                        const GemmPlanOptions& plan) {
  auto state = create(core_, executor, plan, [&](const kernels::MakeOptions& options) {
    return kernels::make_grouped_gemm(shape, core_->view(), options);
  });
  if (!state.ok()) return state.status();
  return GroupedGemm(std::move(*state));
}

Planned::Planned(std::unique_ptr<client::OperationState> state) : state_(std::move(state)) {}
Planned::Planned(Planned&&) noexcept = default;
Planned& Planned::operator=(Planned&& other) noexcept {
  client::end_at_home(state_);
  state_ = std::move(other.state_);
  return *this;
}
Planned::~Planned() {
  client::end_at_home(state_);
}
std::string Planned::signature() const {
  return state_->operation().signature();
}
std::uint64_t Planned::wire_bytes() const {
  return state_->home().here() ? state_->wire_bytes() : 0;
}
std::uint64_t Planned::workspace_bytes() const {
  const Requirements needs = state_->operation().requirements();
  return needs.workspace_bytes + kernels::lent_workspace_bytes(needs.lent_bytes);
}
Executor Planned::executor() const {
  return state_->operation().executor();
}
double Planned::expected_seconds() const {
  return state_->operation().expected_seconds();
}
Status Planned::status() {
  return client::call(state_->home(), [&]() -> Status {
    return state_->at_once([](OperationBase& operation) { return operation.status(); });
  });
}

namespace {

/// The state of a handle was made from the plan of its own kind, so the cast is exact.
template <class Arguments>
Operation<Arguments>& typed(OperationBase& operation) {
  return static_cast<Operation<Arguments>&>(operation);
}

}  // namespace

template <class Arguments>
Result<Pending> Launchable<Arguments>::launch(const Arguments& arguments, const ExecutorOptions& options) {
  return client::call(state_->home(), [&]() -> Result<Pending> {
    return state_->launch([arguments, options](OperationBase& operation) {
      return typed<Arguments>(operation).run(arguments, options);
    });
  });
}
template <class Arguments>
Status Launchable<Arguments>::enqueue(const Arguments& arguments, CUstream_st* stream,
                                      const ExecutorOptions& options) {
  return client::call(state_->home(), [&]() -> Status {
    return state_->enqueue([&](OperationBase& operation) {
      return typed<Arguments>(operation).enqueue(arguments, options, stream);
    });
  });
}

template class Launchable<GemmArguments>;
template class Launchable<MoeArguments>;
template class Launchable<AttentionArguments>;
template class Launchable<AttentionBackwardArguments>;
template class Launchable<GroupedGemmArguments>;

}  // namespace mkernel

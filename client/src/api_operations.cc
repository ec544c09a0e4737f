// The public handles of the operations.
#include <string>

#include "client/src/gpu_memory.h"
#include "client/src/guard.h"
#include "client/src/operation.h"
#include "kernels/plan/gemm_shape.h"
#include "mkernel/client.h"

namespace mkernel {
namespace {

/// The plan as the base class that all operations share.
template <typename Kind>
Result<std::unique_ptr<Operation>> as_operation(Result<std::unique_ptr<Kind>> made) {
  if (!made.ok()) return made.status();
  return std::unique_ptr<Operation>(std::move(*made));
}

template <typename Handle, typename Kind, typename Make>
Result<Handle> create(const std::shared_ptr<client::GroupCore>& group, Result<std::unique_ptr<Kind>> made,
                      Make make) {
  auto state = client::OperationState::create(group, as_operation(std::move(made)));
  if (!state.ok()) return state.status();
  return make(std::move(*state));
}

Result<std::unique_ptr<GemmOperation>> plan_gemm(client::GroupCore& group, OpKind kind,
                                                 const GemmShape& shape, Executor executor,
                                                 const GemmPlanOptions& plan) {
  switch (executor) {
    case Executor::kCpu:
      if (plan == GemmPlanOptions{}) return make_gemm(kind, shape, group.view());
      return Status(
          StatusCode::kInvalidArgument,
          std::string(kernels::name_of(kind)) + ": the cpu executor has no GemmPlanOptions to override");
    case Executor::kCuda: {
      const auto device = group.session().gpu();
      if (!device.ok()) return device.status();
      std::shared_ptr<kernels::RingsOnDevice> rings;
      if (group.view().segment->node_count > 1) {
        auto taken = group.session().rings_on_gpu();
        if (!taken.ok()) return taken.status();
        rings = std::move(*taken);
      }
      return client::make_gemm_on_gpu(device.value(), kind, shape, plan, group.view(), std::move(rings));
    }
  }
  return Status(
      StatusCode::kInvalidArgument,
      "executor = " + std::to_string(static_cast<std::uint32_t>(executor)) + ", must be cpu (0) or cuda (1)");
}

}  // namespace

Result<Gemm> Group::ag_gemm(const GemmShape& shape, Executor executor, const GemmPlanOptions& plan) {
  return client::call(core_->home(), [&]() -> Result<Gemm> {
    return create<Gemm>(core_, plan_gemm(*core_, OpKind::kAgGemm, shape, executor, plan),
                        [](auto state) { return Gemm(std::move(state)); });
  });
}
Result<Gemm> Group::gemm_rs(const GemmShape& shape, Executor executor, const GemmPlanOptions& plan) {
  return client::call(core_->home(), [&]() -> Result<Gemm> {
    return create<Gemm>(core_, plan_gemm(*core_, OpKind::kGemmRs, shape, executor, plan),
                        [](auto state) { return Gemm(std::move(state)); });
  });
}
Result<Gemm> Group::gemm_ar(const GemmShape& shape, Executor executor, const GemmPlanOptions& plan) {
  return client::call(core_->home(), [&]() -> Result<Gemm> {
    return create<Gemm>(core_, plan_gemm(*core_, OpKind::kGemmAr, shape, executor, plan),
                        [](auto state) { return Gemm(std::move(state)); });
  });
}
Result<Moe> Group::moe(const MoeShape& shape) {
  return client::call(core_->home(), [&]() -> Result<Moe> {
    return create<Moe>(core_, make_moe(shape, core_->view()),
                       [](auto state) { return Moe(std::move(state)); });
  });
}
Result<RingAttention> Group::ring_attention(const AttentionShape& shape) {
  return client::call(core_->home(), [&]() -> Result<RingAttention> {
    return create<RingAttention>(core_, make_attention(shape, core_->view()),
                                 [](auto state) { return RingAttention(std::move(state)); });
  });
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
  return state_->operation().requirements().workspace_bytes;
}

// The state of a handle was made from the plan of its own kind, so the casts below are exact.
Result<Pending> Gemm::launch(const GemmArguments& arguments, const ExecutorOptions& options) {
  return client::call(state_->home(), [&]() -> Result<Pending> {
    return state_->launch([arguments, options](Operation& operation) {
      return static_cast<GemmOperation&>(operation).run(arguments, options);
    });
  });
}
Status Gemm::enqueue(const GemmArguments& arguments, CUstream_st* stream, const ExecutorOptions& options) {
  return client::call(state_->home(), [&]() -> Status {
    return state_->at_once([&](Operation& operation) {
      return static_cast<GemmOperation&>(operation).enqueue(arguments, options, stream);
    });
  });
}
Status Gemm::status() {
  return client::call(state_->home(), [&]() -> Status {
    return state_->at_once(
        [](Operation& operation) { return static_cast<GemmOperation&>(operation).status(); });
  });
}
Result<Pending> Moe::launch(const MoeArguments& arguments, const ExecutorOptions& options) {
  return client::call(state_->home(), [&]() -> Result<Pending> {
    return state_->launch([arguments, options](Operation& operation) {
      return static_cast<MoeOperation&>(operation).run(arguments, options);
    });
  });
}
Result<Pending> RingAttention::launch(const AttentionArguments& arguments, const ExecutorOptions& options) {
  return client::call(state_->home(), [&]() -> Result<Pending> {
    return state_->launch([arguments, options](Operation& operation) {
      return static_cast<AttentionOperation&>(operation).run(arguments, options);
    });
  });
}

}  // namespace mkernel

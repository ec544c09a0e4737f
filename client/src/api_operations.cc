// The public handles of the operations.
#include "client/src/operation.h"
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

}  // namespace

Result<Gemm> Group::ag_gemm(const GemmShape& shape) {
  return create<Gemm>(core_, make_gemm(OpKind::kAgGemm, shape, core_->view()),
                      [](auto state) { return Gemm(std::move(state)); });
}
Result<Gemm> Group::gemm_rs(const GemmShape& shape) {
  return create<Gemm>(core_, make_gemm(OpKind::kGemmRs, shape, core_->view()),
                      [](auto state) { return Gemm(std::move(state)); });
}
Result<Gemm> Group::gemm_ar(const GemmShape& shape) {
  return create<Gemm>(core_, make_gemm(OpKind::kGemmAr, shape, core_->view()),
                      [](auto state) { return Gemm(std::move(state)); });
}
Result<Moe> Group::moe(const MoeShape& shape) {
  return create<Moe>(core_, make_moe(shape, core_->view()), [](auto state) { return Moe(std::move(state)); });
}
Result<RingAttention> Group::ring_attention(const AttentionShape& shape) {
  return create<RingAttention>(core_, make_attention(shape, core_->view()),
                               [](auto state) { return RingAttention(std::move(state)); });
}

Planned::Planned(std::unique_ptr<client::OperationState> state) : state_(std::move(state)) {}
Planned::Planned(Planned&&) noexcept = default;
Planned& Planned::operator=(Planned&&) noexcept = default;
Planned::~Planned() = default;
std::string Planned::signature() const {
  return state_->operation().signature();
}
std::uint64_t Planned::wire_bytes() const {
  return state_->wire_bytes();
}
std::uint64_t Planned::workspace_bytes() const {
  return state_->operation().requirements().workspace_bytes;
}

// The state of a handle was made from the plan of its own kind, so the casts below are exact.
Result<Pending> Gemm::launch(const GemmArguments& arguments, const ExecutorOptions& options) {
  return state_->launch([arguments, options](Operation& operation) {
    return static_cast<GemmOperation&>(operation).run(arguments, options);
  });
}
Result<Pending> Moe::launch(const MoeArguments& arguments, const ExecutorOptions& options) {
  return state_->launch([arguments, options](Operation& operation) {
    return static_cast<MoeOperation&>(operation).run(arguments, options);
  });
}
Result<Pending> RingAttention::launch(const AttentionArguments& arguments, const ExecutorOptions& options) {
  return state_->launch([arguments, options](Operation& operation) {
    return static_cast<AttentionOperation&>(operation).run(arguments, options);
  });
}

}  // namespace mkernel

// The backward pass of attention of a rank alone, and of ring attention, on the cuda executor; see op_cuda.h.
#include <optional>
#include <type_traits>
#include <utility>

#include "tools/mkbench/gpu_backward_case.h"
#include "tools/mkbench/gpu_ring_backward_case.h"
#include "tools/mkbench/op_attention_measurement.h"
#include "tools/mkbench/op_cuda.h"

namespace mkernel::bench {
namespace {

/// Operands of a rank alone, as those of a ring are called.
class AloneCase {
 public:
  static Result<AloneCase> make(const AttentionShape& shape, std::int64_t, std::int64_t, int sets) {
    auto operands = GpuBackwardCase::make(shape, sets);
    if (!operands.ok()) return operands.status();
    return AloneCase(std::move(*operands));
  }
  AttentionBackwardArguments arguments(int set) const { return operands_.arguments(set); }
  /// What attention makes of the inputs is among them.
  Status fill(int set, std::uint64_t seed, CUstream_st* stream, const GpuRingBackwardCase::Attend& attend) {
    MK_RETURN_IF_ERROR(operands_.fill(set, seed, stream));
    return attend(operands_.forward(set));
  }
  Result<ProductCheck> check(int set, std::int64_t step, CUstream_st* stream,
                             const GpuRingBackwardCase::Attend&) {
    return operands_.check(set, step, stream);
  }

 private:
  explicit AloneCase(GpuBackwardCase operands) : operands_(std::move(operands)) {}

  GpuBackwardCase operands_;
};

/// `Case`: AloneCase or GpuRingBackwardCase.
template <class Case>
class BackwardMeasurement final : public AttentionMeasurement {
 public:
  BackwardMeasurement(Group& group, const OpCudaOptions& options)
      : AttentionMeasurement(group, kKind, options) {}

  Status prepare(const AttentionShape& given) {
    MK_RETURN_IF_ERROR(begin());
    auto forward = group().attention(given, Executor::kCuda, options().plan);
    if (!forward.ok()) return forward.status();
    forward_ = std::move(*forward);
    auto op = is_alone() ? group().attention_backward(given, Executor::kCuda, options().plan)
                         : group().ring_attention_backward(given, Executor::kCuda, options().plan);
    if (!op.ok()) return op.status();
    op_ = std::move(*op);
    set_shape(given);
    auto operands = Case::make(shape(), world(), group().rank(), sets());
    if (!operands.ok()) return operands.status();
    operands_.emplace(std::move(*operands));
    if constexpr (kKind == OpKind::kRingAttentionBackward) operands_->set_nodes(group().node_count());
    return {};
  }

 private:
  static constexpr OpKind kKind =
      std::is_same_v<Case, AloneCase> ? OpKind::kAttentionBackward : OpKind::kRingAttentionBackward;

  Planned& operation() override { return *op_; }
  Status enqueue(int set, const ExecutorOptions& options) override {
    return op_->enqueue(operands_->arguments(set), stream().get(), options);
  }
  Status fill(int set, std::uint64_t iteration) override {
    return operands_->fill(set, seed(iteration), stream().get(), attend_);
  }
  Result<Outcome> judge(int set) override {
    auto check = operands_->check(set, step(), stream().get(), attend_);
    if (!check.ok()) return check.status();
    return Outcome{*check};
  }

  std::optional<Attention> forward_;
  std::optional<AttentionBackward> op_;
  std::optional<Case> operands_;
  const GpuRingBackwardCase::Attend attend_ = [this](const AttentionArguments& arguments) {
    return forward_->enqueue(arguments, stream().get(), options().executor);
  };
};

template <class Case>
Result<Row> measured(Group& group, const AttentionShape& shape, const OpCudaOptions& options) {
  BackwardMeasurement<Case> measurement(group, options);
  MK_RETURN_IF_ERROR(measurement.prepare(shape));
  return measurement.measure();
}

}  // namespace

Result<Row> measure_backward_cuda(Group& group, OpKind kind, const AttentionShape& shape,
                                  const OpCudaOptions& options) {
  return kind == OpKind::kAttentionBackward ? measured<AloneCase>(group, shape, options)
                                            : measured<GpuRingBackwardCase>(group, shape, options);
}

}  // namespace mkernel::bench

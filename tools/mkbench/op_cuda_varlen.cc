// Attention of sequences of different lengths, of a rank alone and over all ranks, and its backward pass, on
// the cuda executor; see op_cuda.h.
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/attention_sequences.h"
#include "tools/mkbench/gpu_varlen_backward_case.h"
#include "tools/mkbench/gpu_varlen_case.h"
#include "tools/mkbench/op_attention_measurement.h"
#include "tools/mkbench/op_cuda.h"

namespace mkernel::bench {
namespace {

/// `Case`: GpuVarlenCase or GpuVarlenBackwardCase.
template <class Case>
class VarlenMeasurement final : public AttentionMeasurement {
 public:
  VarlenMeasurement(Group& group, OpKind kind, std::vector<std::int32_t> lengths,
                    const OpCudaOptions& options)
      : AttentionMeasurement(group, kind, options), lengths_(std::move(lengths)) {}

  Status prepare(const AttentionShape& given) {
    MK_RETURN_IF_ERROR(begin());
    AttentionShape whole = given;
    whole.sequence *= world();
    set_shape(whole);
    auto forward = is_alone() ? group().attention(whole, Executor::kCuda, options().plan)
                              : group().ring_attention(whole, Executor::kCuda, options().plan);
    if (!forward.ok()) return forward.status();
    forward_ = std::move(*forward);
    if constexpr (kBackward) {
      auto op = group().attention_backward(whole, Executor::kCuda, options().plan);
      if (!op.ok()) return op.status();
      backward_ = std::move(*op);
    }
    for (int set = 0; set < sets(); ++set) {
      auto operands = make_operands(whole);
      if (!operands.ok()) return operands.status();
      MK_RETURN_IF_ERROR(operands->set_lengths(lengths_, lengths_, stream().get()));
      operands_.push_back(std::move(*operands));
    }
    return stream().synchronize();
  }

 private:
  static constexpr bool kBackward = std::is_same_v<Case, GpuVarlenBackwardCase>;

  Result<Case> make_operands(const AttentionShape& whole) {
    if constexpr (kBackward) {
      return Case::make(whole);
    } else {
      return Case::make(whole, world(), is_alone() ? 0 : group().rank());
    }
  }
  Planned& operation() override {
    if constexpr (kBackward) {
      return *backward_;
    } else {
      return *forward_;
    }
  }
  Status enqueue(int set, const ExecutorOptions& options) override {
    if constexpr (kBackward) {
      return backward_->enqueue(of(set).arguments(), stream().get(), options);
    } else {
      return forward_->enqueue(of(set).arguments(), stream().get(), options);
    }
  }
  Status fill(int set, std::uint64_t iteration) override {
    MK_RETURN_IF_ERROR(of(set).fill(seed(iteration), stream().get()));
    // What attention makes of the inputs is among those of its backward pass.
    if constexpr (kBackward) return forward_->enqueue(of(set).forward(), stream().get(), options().executor);
    return {};
  }
  Result<Outcome> judge(int set) override {
    auto check = of(set).check(lengths_, lengths_, step(), stream().get());
    if (!check.ok()) return check.status();
    return Outcome{*check};
  }
  void describe(Row& row) const override {
    AttentionMeasurement::describe(row);
    row.shape["cu_seqlens"] = lengths_;
    row.shape["window"] = {shape().window_left, shape().window_right};
    row.shape_text += ", " + std::to_string(shape().max_sequences) + " sequences";
  }
  /// Without what the masks hide.
  double pairs() const override {
    const kernels::AttentionWindow window = kernels::attention_window(shape());
    double all = 0;
    for (std::size_t i = 0; i + 1 < lengths_.size(); ++i) {
      const auto length = static_cast<std::int32_t>((lengths_[i + 1] - lengths_[i]) * world());
      for (std::int32_t query = 0; query < length; ++query) {
        const auto keys = kernels::attention_window_keys({0, length, 0, length}, window, query, query + 1);
        all += keys.end - keys.first;
      }
    }
    return all;
  }

  Case& of(int set) { return operands_[static_cast<std::size_t>(set)]; }

  const std::vector<std::int32_t> lengths_;
  std::optional<Attention> forward_;
  std::optional<AttentionBackward> backward_;
  std::vector<Case> operands_;
};

template <class Case>
Result<Row> measured(Group& group, OpKind kind, const AttentionShape& shape,
                     const std::vector<std::int32_t>& lengths, const OpCudaOptions& options) {
  VarlenMeasurement<Case> measurement(group, kind, lengths, options);
  MK_RETURN_IF_ERROR(measurement.prepare(shape));
  return measurement.measure();
}

}  // namespace

Result<Row> measure_varlen_cuda(Group& group, OpKind kind, const AttentionShape& shape,
                                const std::vector<std::int32_t>& lengths, const OpCudaOptions& options) {
  return kind == OpKind::kAttentionBackward
             ? measured<GpuVarlenBackwardCase>(group, kind, shape, lengths, options)
             : measured<GpuVarlenCase>(group, kind, shape, lengths, options);
}

}  // namespace mkernel::bench

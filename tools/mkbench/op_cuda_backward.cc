// The backward pass of attention of a rank alone, and of ring attention, on the cuda executor; see op_cuda.h.
#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "tools/mkbench/gpu_backward_case.h"
#include "tools/mkbench/gpu_ring_backward_case.h"
#include "tools/mkbench/op_cuda.h"
#include "tools/mkbench/op_measurement.h"
#include "tools/mkbench/random.h"
#include "tools/mkbench/report.h"
#include "tools/mkbench/workload.h"

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
class BackwardMeasurement final : public OpMeasurement {
 public:
  using OpMeasurement::OpMeasurement;

  Status prepare(AttentionShape shape) {
    MK_RETURN_IF_ERROR(begin());
    auto forward = group().attention(shape, Executor::kCuda, options().plan);
    if (!forward.ok()) return forward.status();
    forward_ = std::move(*forward);
    auto op = kAlone ? group().attention_backward(shape, Executor::kCuda, options().plan)
                     : group().ring_attention_backward(shape, Executor::kCuda, options().plan);
    if (!op.ok()) return op.status();
    op_ = std::move(*op);
    if (shape.keys == 0) shape.keys = shape.sequence;
    shape_ = shape;
    world_ = kAlone ? 1 : group().world_size();
    auto operands = Case::make(shape, world_, group().rank(), sets());
    if (!operands.ok()) return operands.status();
    operands_.emplace(std::move(*operands));
    if constexpr (!kAlone) operands_->set_nodes(group().node_count());
    return {};
  }

 private:
  static constexpr bool kAlone = std::is_same_v<Case, AloneCase>;
  static constexpr OpKind kKind = kAlone ? OpKind::kAttentionBackward : OpKind::kRingAttentionBackward;

  Planned& operation() override { return *op_; }
  Status enqueue(int set, const ExecutorOptions& options) override {
    return op_->enqueue(operands_->arguments(set), stream().get(), options);
  }
  int sets() const override { return std::min(options().iterations, kMostPerRound / 4) + 1; }
  Status fill(int set, std::uint64_t iteration) override {
    // A rank alone has inputs of its own.
    const std::uint64_t rank = kAlone ? group().rank() : 0;
    return operands_->fill(set, seed_of(static_cast<std::uint64_t>(kKind), iteration, rank, 0),
                           stream().get(), attend_);
  }
  Result<Outcome> judge(int set) override {
    // All rows of small shapes; of large ones some thousands, of all heads.
    constexpr std::int64_t kLooked = 1 << 13;
    const std::int64_t rows = shape_.batch * shape_.heads * shape_.sequence / world_;
    auto check = operands_->check(set, rows > kLooked ? (rows / kLooked) | 1 : 1, stream().get(), attend_);
    if (!check.ok()) return check.status();
    return Outcome{*check};
  }
  void describe(Row& row) const override {
    row.shape = json_of(kKind, shape_);
    row.shape["executor"] = "cuda";
    row.shape_text = text_of(shape_);
  }
  void finish(Row& row) const override {
    row.shape["tflops"] = 1e-9 * operations() / median(row.milliseconds);
  }

  /// Of a rank's part of five products, without what the mask hides, as is usual.
  double operations() const {
    const double pairs =
        static_cast<double>(shape_.batch * shape_.heads * shape_.sequence) * static_cast<double>(shape_.keys);
    return 10 * pairs * static_cast<double>(shape_.head_dim) * (shape_.causal ? 0.5 : 1) /
           static_cast<double>(world_);
  }

  std::optional<Attention> forward_;
  std::optional<AttentionBackward> op_;
  AttentionShape shape_;
  std::int64_t world_ = 1;
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

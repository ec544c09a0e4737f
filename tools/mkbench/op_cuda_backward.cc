// The backward pass of attention of a rank alone on the cuda executor; see op_cuda.h.
#include <algorithm>
#include <optional>
#include <utility>

#include "tools/mkbench/gpu_backward_case.h"
#include "tools/mkbench/op_cuda.h"
#include "tools/mkbench/op_measurement.h"
#include "tools/mkbench/random.h"
#include "tools/mkbench/report.h"
#include "tools/mkbench/workload.h"

namespace mkernel::bench {
namespace {

constexpr OpKind kKind = OpKind::kAttentionBackward;

class BackwardMeasurement final : public OpMeasurement {
 public:
  using OpMeasurement::OpMeasurement;

  Status prepare(AttentionShape shape) {
    MK_RETURN_IF_ERROR(begin());
    auto forward = group().attention(shape, Executor::kCuda, options().plan);
    if (!forward.ok()) return forward.status();
    forward_ = std::move(*forward);
    auto op = group().attention_backward(shape, Executor::kCuda, options().plan);
    if (!op.ok()) return op.status();
    op_ = std::move(*op);
    if (shape.keys == 0) shape.keys = shape.sequence;
    shape_ = shape;
    auto operands = GpuBackwardCase::make(shape, sets());
    if (!operands.ok()) return operands.status();
    operands_ = std::move(*operands);
    return {};
  }

 private:
  Planned& operation() override { return *op_; }
  Status enqueue(int set, const ExecutorOptions& options) override {
    return op_->enqueue(operands_->arguments(set), stream().get(), options);
  }
  int sets() const override { return std::min(options().iterations, kMostPerRound / 4) + 1; }
  /// What attention makes of the inputs is among them.
  Status fill(int set, std::uint64_t iteration) override {
    const auto kind = static_cast<std::uint64_t>(kKind);
    MK_RETURN_IF_ERROR(operands_->fill(set, seed_of(kind, iteration, group().rank(), 0), stream().get()));
    return forward_->enqueue(operands_->forward(set), stream().get(), options().executor);
  }
  Result<Outcome> judge(int set) override {
    // All rows of small shapes; of large ones some thousands, of all heads.
    constexpr std::int64_t kLooked = 1 << 13;
    const std::int64_t rows = shape_.batch * shape_.heads * shape_.sequence;
    auto check = operands_->check(set, rows > kLooked ? (rows / kLooked) | 1 : 1, stream().get());
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

  /// Of five products, without what the mask hides, as is usual.
  double operations() const {
    const double pairs =
        static_cast<double>(shape_.batch * shape_.heads * shape_.sequence) * static_cast<double>(shape_.keys);
    return 10 * pairs * static_cast<double>(shape_.head_dim) * (shape_.causal ? 0.5 : 1);
  }

  std::optional<Attention> forward_;
  std::optional<AttentionBackward> op_;
  AttentionShape shape_;
  std::optional<GpuBackwardCase> operands_;
};

}  // namespace

Result<Row> measure_backward_cuda(Group& group, const AttentionShape& shape, const OpCudaOptions& options) {
  BackwardMeasurement measurement(group, options);
  MK_RETURN_IF_ERROR(measurement.prepare(shape));
  return measurement.measure();
}

}  // namespace mkernel::bench

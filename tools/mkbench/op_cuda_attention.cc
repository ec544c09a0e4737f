// Attention of a rank alone, and ring attention, on the cuda executor; see op_cuda.h.
#include <algorithm>
#include <optional>
#include <utility>

#include "tools/mkbench/gpu_attention_case.h"
#include "tools/mkbench/op_cuda.h"
#include "tools/mkbench/op_measurement.h"
#include "tools/mkbench/random.h"
#include "tools/mkbench/report.h"
#include "tools/mkbench/workload.h"

namespace mkernel::bench {
namespace {

class AttentionMeasurement final : public OpMeasurement {
 public:
  AttentionMeasurement(Group& group, OpKind kind, const OpCudaOptions& options)
      : OpMeasurement(group, options), kind_(kind) {}

  Status prepare(AttentionShape shape) {
    MK_RETURN_IF_ERROR(begin());
    const bool alone = kind_ == OpKind::kAttention;
    auto op = alone ? group().attention(shape, Executor::kCuda, options().plan)
                    : group().ring_attention(shape, Executor::kCuda, options().plan);
    if (!op.ok()) return op.status();
    op_ = std::move(*op);
    if (shape.keys == 0) shape.keys = shape.sequence;
    shape_ = shape;
    world_ = alone ? 1 : group().world_size();
    auto operands = GpuAttentionCase::make(shape, world_, alone ? 0 : group().rank(), sets());
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
  Status fill(int set, std::uint64_t iteration) override {
    // A rank alone has inputs of its own.
    const std::uint64_t rank = kind_ == OpKind::kAttention ? group().rank() : 0;
    return operands_->fill(set, seed_of(static_cast<std::uint64_t>(kind_), iteration, rank, 0),
                           stream().get());
  }
  Result<Outcome> judge(int set) override {
    // All queries of small shapes; of large ones some thousands, of all heads.
    constexpr std::int64_t kLooked = 1 << 15;
    const std::int64_t rows = shape_.batch * shape_.heads * shape_.sequence / world_;
    const std::int64_t step = rows > kLooked ? (rows / kLooked) | 1 : 1;
    auto check = operands_->check(set, step, stream().get());
    if (!check.ok()) return check.status();
    return Outcome{*check};
  }
  void describe(Row& row) const override {
    row.shape = json_of(kind_, shape_);
    row.shape["executor"] = "cuda";
    row.shape_text = text_of(shape_);
  }
  void finish(Row& row) const override {
    row.shape["tflops"] = 1e-9 * operations() / median(row.milliseconds);
  }

  /// Of a rank's part of both products, without what the mask hides, as is usual.
  double operations() const {
    const double pairs =
        static_cast<double>(shape_.batch * shape_.heads * shape_.sequence) * static_cast<double>(shape_.keys);
    return 4 * pairs * static_cast<double>(shape_.head_dim) * (shape_.causal ? 0.5 : 1) /
           static_cast<double>(world_);
  }

  const OpKind kind_;
  std::optional<Attention> op_;
  AttentionShape shape_;
  std::int64_t world_ = 1;
  std::optional<GpuAttentionCase> operands_;
};

}  // namespace

Result<Row> measure_attention_cuda(Group& group, OpKind kind, const AttentionShape& shape,
                                   const OpCudaOptions& options) {
  AttentionMeasurement measurement(group, kind, options);
  MK_RETURN_IF_ERROR(measurement.prepare(shape));
  return measurement.measure();
}

}  // namespace mkernel::bench

// Attention of sequences of different lengths, of a rank alone and over all ranks, on the cuda executor; see
// op_cuda.h.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/plan/attention_sequences.h"
#include "tools/mkbench/gpu_varlen_case.h"
#include "tools/mkbench/op_cuda.h"
#include "tools/mkbench/op_measurement.h"
#include "tools/mkbench/random.h"
#include "tools/mkbench/report.h"
#include "tools/mkbench/workload.h"

namespace mkernel::bench {
namespace {

class VarlenMeasurement final : public OpMeasurement {
 public:
  VarlenMeasurement(Group& group, OpKind kind, std::vector<std::int32_t> lengths,
                    const OpCudaOptions& options)
      : OpMeasurement(group, options), kind_(kind), lengths_(std::move(lengths)) {}

  Status prepare(const AttentionShape& shape) {
    MK_RETURN_IF_ERROR(begin());
    shape_ = shape;
    const bool alone = kind_ == OpKind::kAttention;
    world_ = alone ? 1 : group().world_size();
    shape_.sequence *= world_;
    auto op = alone ? group().attention(shape_, Executor::kCuda, options().plan)
                    : group().ring_attention(shape_, Executor::kCuda, options().plan);
    if (!op.ok()) return op.status();
    op_ = std::move(*op);
    for (int set = 0; set < sets(); ++set) {
      auto operands = GpuVarlenCase::make(shape_, world_, alone ? 0 : group().rank());
      if (!operands.ok()) return operands.status();
      MK_RETURN_IF_ERROR(operands->set_lengths(lengths_, lengths_, stream().get()));
      operands_.push_back(std::move(*operands));
    }
    return stream().synchronize();
  }

 private:
  Planned& operation() override { return *op_; }
  Status enqueue(int set, const ExecutorOptions& options) override {
    return op_->enqueue(of(set).arguments(), stream().get(), options);
  }
  int sets() const override { return std::min(options().iterations, kMostPerRound / 4) + 1; }
  Status fill(int set, std::uint64_t iteration) override {
    // A rank alone has inputs of its own.
    const std::uint64_t rank = kind_ == OpKind::kAttention ? group().rank() : 0;
    return of(set).fill(seed_of(static_cast<std::uint64_t>(kind_), iteration, rank, 0), stream().get());
  }
  Result<Outcome> judge(int set) override {
    // All queries of small shapes; of large ones some thousands, of all heads.
    constexpr std::int64_t kLooked = 1 << 15;
    const std::int64_t rows = shape_.heads * shape_.sequence / world_;
    auto check = of(set).check(lengths_, lengths_, rows > kLooked ? (rows / kLooked) | 1 : 1, stream().get());
    if (!check.ok()) return check.status();
    return Outcome{*check};
  }
  void describe(Row& row) const override {
    row.shape = json_of(kind_, shape_);
    row.shape["executor"] = "cuda";
    row.shape["cu_seqlens"] = lengths_;
    row.shape["window"] = {shape_.window_left, shape_.window_right};
    row.shape_text = text_of(shape_) + ", " + std::to_string(shape_.max_sequences) + " sequences";
  }
  void finish(Row& row) const override {
    row.shape["tflops"] = 1e-9 * operations() / median(row.milliseconds);
  }

  /// Of both products of a rank, without what the masks hide; of ring attention all ranks have the same.
  double operations() const {
    double pairs = 0;
    for (std::size_t i = 0; i + 1 < lengths_.size(); ++i) {
      const auto length = static_cast<std::int32_t>((lengths_[i + 1] - lengths_[i]) * world_);
      for (std::int32_t query = 0; query < length; ++query) {
        const auto keys = kernels::attention_window_keys({0, length, 0, length}, window(), query, query + 1);
        pairs += keys.end - keys.first;
      }
    }
    return 4 * pairs * static_cast<double>(shape_.heads * shape_.head_dim) / static_cast<double>(world_);
  }
  kernels::AttentionWindow window() const {
    return {static_cast<std::int32_t>(shape_.window_left),
            shape_.causal ? 0 : static_cast<std::int32_t>(shape_.window_right)};
  }

  GpuVarlenCase& of(int set) { return operands_[static_cast<std::size_t>(set)]; }

  const OpKind kind_;
  const std::vector<std::int32_t> lengths_;
  std::int64_t world_ = 1;
  AttentionShape shape_;
  std::optional<Attention> op_;
  std::vector<GpuVarlenCase> operands_;
};

}  // namespace

Result<Row> measure_varlen_cuda(Group& group, OpKind kind, const AttentionShape& shape,
                                const std::vector<std::int32_t>& lengths, const OpCudaOptions& options) {
  VarlenMeasurement measurement(group, kind, lengths, options);
  MK_RETURN_IF_ERROR(measurement.prepare(shape));
  return measurement.measure();
}

}  // namespace mkernel::bench

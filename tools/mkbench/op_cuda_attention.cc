// Attention of a rank alone, and ring attention, on the cuda executor; see op_cuda.h.
#include <optional>
#include <utility>

#include "tools/mkbench/gpu_attention_case.h"
#include "tools/mkbench/op_attention_measurement.h"
#include "tools/mkbench/op_cuda.h"

namespace mkernel::bench {
namespace {

class ForwardMeasurement final : public AttentionMeasurement {
 public:
  using AttentionMeasurement::AttentionMeasurement;

  Status prepare(const AttentionShape& given) {
    MK_RETURN_IF_ERROR(begin());
    auto op = is_alone() ? group().attention(given, Executor::kCuda, options().plan)
                         : group().ring_attention(given, Executor::kCuda, options().plan);
    if (!op.ok()) return op.status();
    op_ = std::move(*op);
    set_shape(given);
    auto operands = GpuAttentionCase::make(shape(), world(), is_alone() ? 0 : group().rank(), sets());
    if (!operands.ok()) return operands.status();
    operands_ = std::move(*operands);
    return {};
  }

 private:
  Planned& operation() override { return *op_; }
  Status enqueue(int set, const ExecutorOptions& options) override {
    return op_->enqueue(operands_->arguments(set), stream().get(), options);
  }
  Status fill(int set, std::uint64_t iteration) override {
    return operands_->fill(set, seed(iteration), stream().get());
  }
  Result<Outcome> judge(int set) override {
    auto check = operands_->check(set, step(), stream().get());
    if (!check.ok()) return check.status();
    return Outcome{*check};
  }

  std::optional<Attention> op_;
  std::optional<GpuAttentionCase> operands_;
};

}  // namespace

Result<Row> measure_attention_cuda(Group& group, OpKind kind, const AttentionShape& shape,
                                   const OpCudaOptions& options) {
  ForwardMeasurement measurement(group, kind, options);
  MK_RETURN_IF_ERROR(measurement.prepare(shape));
  return measurement.measure();
}

}  // namespace mkernel::bench

// The mixture of experts on the cuda executor; see op_cuda.h.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "tools/mkbench/gpu_moe_case.h"
#include "tools/mkbench/moe_inputs.h"
#include "tools/mkbench/op_cuda.h"
#include "tools/mkbench/op_measurement.h"

namespace mkernel::bench {
namespace {

class MoeMeasurement final : public OpMeasurement {
 public:
  using OpMeasurement::OpMeasurement;

  Status prepare(const MoeShape& shape) {
    MK_RETURN_IF_ERROR(begin());
    auto op = group().moe(shape, Executor::kCuda, options().plan);
    if (!op.ok()) return op.status();
    op_ = std::move(*op);
    // A set has tokens and routing of its own. The weights are the same: those of a layer do not fit L2.
    const int sets = std::min(options().iterations, kMostPerRound / 2) + 1;
    auto made = GpuMoeCase::make(shape, group().world_size(), group().rank(), sets, stream().get());
    if (!made.ok()) return made.status();
    case_ = std::move(*made);
    return {};
  }

 private:
  Planned& operation() override { return *op_; }
  Status enqueue(int set, const ExecutorOptions& options) override {
    return op_->enqueue(case_->arguments(set), stream().get(), options);
  }
  int sets() const override { return case_->sets(); }
  Status fill(int set, std::uint64_t iteration) override { return case_->fill(set, iteration); }
  Result<Outcome> judge(int set) override {
    auto check = case_->verify(set);
    if (!check.ok()) return check.status();
    return Outcome{*check};
  }
  void describe(Row& row) const override {
    const MoeShape& shape = case_->shape();
    row.shape = json_of(shape, group().world_size());
    row.shape["executor"] = "cuda";
    row.shape["capacity"] = shape.capacity;
    row.shape["w_layout"] = shape.w_layout == Layout::kRowMajor ? "row-major" : "column-major";
    row.shape_text = text_of(shape, group().world_size());
  }

  std::optional<Moe> op_;
  std::optional<GpuMoeCase> case_;
};

}  // namespace

Result<Row> measure_moe_cuda(Group& group, const MoeShape& shape, const OpCudaOptions& options) {
  MoeMeasurement measurement(group, options);
  MK_RETURN_IF_ERROR(measurement.prepare(shape));
  return measurement.measure();
}

}  // namespace mkernel::bench

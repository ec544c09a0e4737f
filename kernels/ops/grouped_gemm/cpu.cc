// The grouped GEMM on the cpu executor: threads take one part of a group's columns after the other.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/launch/binding.h"
#include "kernels/cpu/memory/convert.h"
#include "kernels/ops/grouped_gemm/plan.h"
#include "kernels/ops/make.h"
#include "kernels/plan/cuts.h"

namespace mkernel::kernels {
namespace {

constexpr std::int64_t kColumns = 256, kRows = 256;  // of a tile

/// One launch.
class GroupedGemmLaunch {
 public:
  GroupedGemmLaunch(const GroupedGemmShape& shape, const GroupedGemmArguments& arguments,
                    const Launch& launch)
      : shape_(shape),
        arguments_(arguments),
        launch_(launch),
        parts_(ceil_div(shape.n, kColumns)),
        work_(static_cast<std::int32_t>(shape.groups * parts_)) {}

  /// A compute thread.
  Status compute() {
    std::vector<float> b(static_cast<std::size_t>(shape_.k * kColumns));
    std::vector<float> a(static_cast<std::size_t>(kRows * shape_.k)), c(kRows * kColumns);
    for (std::int32_t i = work_.next(); i < work_.all() && !launch_.roles.stop(); i = work_.next()) {
      const std::int64_t group = i / parts_, part = i % parts_;
      const Range columns{part * kColumns, std::min(shape_.n, (part + 1) * kColumns)};
      Range rows{group == 0 ? 0 : arguments_.ends[group - 1], arguments_.ends[group]};
      if (rows.size() == 0) continue;
      widen_b(group, columns, b.data());
      for (; rows.begin < rows.end; rows.begin += kRows)
        tile({rows.begin, std::min(rows.end, rows.begin + kRows)}, columns, a.data(), b.data(), c.data());
    }
    return {};
  }

 private:
  bool row_major() const { return shape_.b_layout == Layout::kRowMajor; }

  /// Columns of a group's b, dense.
  void widen_b(std::int64_t group, Range columns, float* to) const {
    const auto* b = static_cast<const std::uint16_t*>(arguments_.b) + group * shape_.k * shape_.n;
    if (!row_major()) {
      widen(shape_.dtype, b + columns.begin * shape_.k, to,
            static_cast<std::size_t>(columns.size() * shape_.k));
      return;
    }
    for (std::int64_t row = 0; row < shape_.k; ++row, to += columns.size())
      widen(shape_.dtype, b + row * shape_.n + columns.begin, to, static_cast<std::size_t>(columns.size()));
  }

  void tile(Range rows, Range columns, float* a, const float* b, float* c) const {
    widen(shape_.dtype, static_cast<const std::uint16_t*>(arguments_.a) + rows.begin * shape_.k, a,
          static_cast<std::size_t>(rows.size() * shape_.k));
    sgemm(row_major() ? Transpose::kNo : Transpose::kYes, rows.size(), columns.size(), shape_.k, a, shape_.k,
          b, row_major() ? columns.size() : shape_.k, false, c, columns.size());
    auto* to = static_cast<std::uint16_t*>(arguments_.c) + rows.begin * shape_.n + columns.begin;
    for (std::int64_t row = 0; row < rows.size(); ++row)
      narrow(shape_.dtype, c + row * columns.size(), to + row * shape_.n,
             static_cast<std::size_t>(columns.size()));
  }

  const GroupedGemmShape& shape_;
  const GroupedGemmArguments& arguments_;
  const Launch& launch_;
  const std::int64_t parts_;
  WorkCounter work_;
};

class CpuGroupedGemm final : public GroupedGemmOperation {
 public:
  CpuGroupedGemm(GroupedGemmPlan plan, Topology topology)
      : plan_(std::move(plan)), topology_(std::move(topology)) {}

  OpKind kind() const override { return OpKind::kGroupedGemm; }
  Executor executor() const override { return Executor::kCpu; }
  std::string signature() const override { return plan_.signature(); }
  Requirements requirements() const override { return {}; }
  std::uint64_t wire_bytes() const override { return 0; }
  bool refused() const override { return refused_; }

  Status bind(const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
              std::uint32_t first_lane) override {
    return binding_.bind(requirements(), topology_, group, workspace, lent, first_lane);
  }

  Status run(const GroupedGemmArguments& arguments, const ExecutorOptions& options) override {
    refused_ = false;
    MK_RETURN_IF_ERROR(binding_.ready());
    MK_RETURN_IF_ERROR(plan_.check(arguments));
    const Status refusal = plan_.refuse(first_bad_end(arguments.ends));
    refused_ = !refusal.ok();
    MK_RETURN_IF_ERROR(refusal);
    return binding_.launch(topology_, options, [&](Launch& launch) {
      GroupedGemmLaunch roles(plan_.shape, arguments, launch);
      for (int thread = 0; thread < launch.compute_threads; ++thread)
        launch.roles.start("compute", [&roles] { return roles.compute(); });
      (void)launch.roles.join();
    });
  }

 private:
  BadEnd first_bad_end(const std::int32_t* ends) const {
    std::int32_t begin = 0;
    for (std::int32_t group = 0; group < plan_.shape.groups; begin = ends[group++])
      if (ends[group] < begin || ends[group] > plan_.shape.max_rows) return {group, begin, ends[group]};
    return {};
  }

  const GroupedGemmPlan plan_;
  const Topology topology_;
  Binding binding_{"grouped_gemm"};
  bool refused_ = false;
};

}  // namespace

Result<std::unique_ptr<GroupedGemmOperation>> make_cpu_grouped_gemm(const GroupedGemmShape& shape,
                                                                    const Topology& topology) {
  auto plan = GroupedGemmPlan::make(shape);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<GroupedGemmOperation>(
      std::make_unique<CpuGroupedGemm>(std::move(plan).value(), topology));
}

}  // namespace mkernel::kernels

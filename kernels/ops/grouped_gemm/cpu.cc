// The grouped GEMM on the cpu executor: threads take one part of a group's columns after the other.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/launch/alone_operation.h"
#include "kernels/cpu/memory/convert.h"
#include "kernels/cpu/memory/floats.h"
#include "kernels/ops/grouped_gemm/plan.h"
#include "kernels/ops/make.h"
#include "kernels/plan/cuts.h"

namespace mkernel::kernels {
namespace {

constexpr std::int64_t kColumns = 256, kRows = 256;  // of a tile

/// One launch.
class GroupedGemmLaunch {
 public:
  GroupedGemmLaunch(const GroupedGemmPlan& plan, const GroupedGemmArguments& arguments, const Launch& launch)
      : shape_(plan.shape),
        arguments_(arguments),
        launch_(launch),
        parts_(ceil_div(shape_.n, kColumns)),
        work_(static_cast<std::int32_t>(shape_.groups * parts_)) {}

  static Status refuse(const GroupedGemmPlan& plan, const GroupedGemmArguments& arguments) {
    const std::int32_t* const ends = arguments.ends;
    std::int32_t begin = 0;
    for (std::int32_t group = 0; group < plan.shape.groups; begin = ends[group++])
      if (ends[group] < begin || ends[group] > plan.shape.max_rows)
        return plan.refuse({group, begin, ends[group]});
    return {};
  }

  /// A compute thread.
  Status compute() {
    const Floats a = make_floats(kRows * shape_.k), b = make_floats(shape_.k * kColumns),
                 c = make_floats(kRows * kColumns);
    for (std::int32_t i = work_.next(); i < work_.all() && !launch_.roles.stop(); i = work_.next()) {
      const std::int64_t group = i / parts_, part = i % parts_;
      const Range columns{part * kColumns, std::min(shape_.n, (part + 1) * kColumns)};
      Range rows{group == 0 ? 0 : arguments_.ends[group - 1], arguments_.ends[group]};
      if (rows.size() == 0) continue;
      widen_b(group, columns, b.get());
      for (; rows.begin < rows.end; rows.begin += kRows)
        tile({rows.begin, std::min(rows.end, rows.begin + kRows)}, columns, a.get(), b.get(), c.get());
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

using CpuGroupedGemm = CpuAloneOperation<GroupedGemmArguments, GroupedGemmPlan, GroupedGemmLaunch>;

}  // namespace

Result<std::unique_ptr<GroupedGemmOperation>> make_cpu_grouped_gemm(const GroupedGemmShape& shape,
                                                                    const Topology& topology) {
  auto plan = GroupedGemmPlan::make(shape);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<GroupedGemmOperation>(
      std::make_unique<CpuGroupedGemm>(OpKind::kGroupedGemm, std::move(plan).value(), topology));
}

}  // namespace mkernel::kernels

// Plan of the grouped GEMM: what it refuses, and how it is called.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops/grouped_gemm/groups.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Overrides of the cuda executor. 0 or empty = by device.
struct GroupedGemmOptions {
  std::int32_t sms = 0;  ///< multiprocessors at most
  std::string machine;   ///< as GemmPlanOptions' of this name
};

/// Pure.
struct GroupedGemmPlan {
  GroupedGemmShape shape;

  /// kInvalidArgument naming field, value and limit.
  static Result<GroupedGemmPlan> make(const GroupedGemmShape& shape);
  /// Likewise, for what the kernel of the cuda executor does not have.
  Status check_on_gpu(std::int32_t sms) const;

  /// "grouped_gemm max_rows=4096 n=1024 k=4096 groups=64 bf16 row-major"
  std::string signature() const;
  /// kInvalidArgument for an operand that is null.
  Status check(const GroupedGemmArguments& arguments) const;
  /// OK without a bad end; else kInvalidArgument.
  Status refuse(const BadEnd& bad) const;

  /// Of one group.
  GemmShape product() const { return {shape.max_rows, shape.n, shape.k, shape.dtype, shape.b_layout}; }
  /// Rows of memory from one group's b to the next one's.
  std::int64_t matrix_rows() const { return shape.b_layout == Layout::kRowMajor ? shape.k : shape.n; }
};

}  // namespace mkernel::kernels

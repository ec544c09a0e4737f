// How close the cpu executor comes to a BLAS on the product alone: an operation can be no faster than this.
#pragma once

#include <vector>

#include "mkernel/ops.h"

namespace mkernel::bench {

struct GemmFloorRow {
  GemmShape shape;
  double blas_gflops = 0;      ///< one cblas_sgemm over the whole shape, fp32 operands at hand
  double executor_gflops = 0;  ///< GEMM+RS on a world of one: widening, product, sums, narrowing
  double ratio = 0;            ///< executor / blas
};

/// Measures each shape with one compute thread on both sides (the serial OpenBLAS must not be called by
/// several): median of `repeats` >= 1 after one that does not count. Fails when an operation does.
Result<std::vector<GemmFloorRow>> measure_gemm_floor(const std::vector<GemmShape>& shapes, int repeats);

}  // namespace mkernel::bench

// The cuda executor's product against cuBLAS, same shapes, same run, in turns.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/plan/sm90_skinny.h"
#include "mkernel/ops.h"
#include "proto/abi/status.h"
#include "tools/mkbench/gpu_matrix.h"

namespace mkernel::bench {

struct GemmCudaOptions {
  int iterations = 20;                    ///< timed calls of each side
  double seconds = 2.0;                   ///< fewer iterations when one shape would take longer, at least 5
  std::optional<kernels::Sm90Tile> tile;  ///< instead of the plan's choice, with `cluster`
  kernels::Sm90Cluster cluster = kernels::Sm90Cluster::kStacked;
  bool skinny = false;  ///< the body for few rows, instead of the plan's choice
  int split = 0;        ///< with `skinny`: CTAs of a cluster; 0: the plan's choice
  int band = 0;         ///< rows of a raster band; 0: the plan's choice
  bool graph = false;   ///< time calls in a replayed graph: the host is too slow for products of microseconds
  bool check = true;    ///< compare every element with fp64 afterwards
};

struct GemmCudaRow {
  GemmShape shape;
  kernels::Sm90LocalPlan plan;
  bool graph = false;
  int iterations = 0;
  double ms = 0, cublas_ms = 0;  ///< medians
  double spread = 0;             ///< (max - min) / median of ours
  ProductCheck check;
  bool verified = false;
  double tflops() const {
    return 2e-9 * static_cast<double>(shape.m * shape.n) * static_cast<double>(shape.k) / ms;
  }
};

/// Measures one shape. Every call reads inputs that no call before it left in L2 (several sets in turn), ours
/// and cuBLAS's alternate, so that both see the same clocks; the output is poisoned, computed and checked
/// afterwards. In graphs, one of each side has a call for every set, and what alternates are the graphs;
/// kInvalidArgument when `skinny` is asked for more rows than there is a body for.
Result<GemmCudaRow> measure_gemm_cuda(const GemmShape& shape, const GemmCudaOptions& options);

}  // namespace mkernel::bench

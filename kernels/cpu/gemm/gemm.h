// The cpu executor's tensor core: bf16/fp16 in, fp32 out, by way of a BLAS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Products with one second operand b: [k, n] row-major or [n, k] column-major. b is widened to fp32 once
/// per launch, panels of a once per tile. Each call runs on its caller's thread; convert_b() of all parts
/// happens before any tile() of the launch.
class CpuGemm {
 public:
  /// Allocates the fp32 copy of b; throws std::bad_alloc.
  explicit CpuGemm(const GemmShape& shape);

  /// Widens part `part` of `parts` of b.
  void convert_b(const void* b, int part, int parts);

  /// out[r, c] = sum_k a[r, k] x b[k, columns.begin + c]; a: `rows` dense rows of k fp32, out: fp32 with
  /// `leading` elements between rows. The result depends on nothing but the values and the shape of the tile.
  void product(const float* a, std::int64_t rows, Range columns, float* out, std::int64_t leading) const;

  /// The same for rows of 16-bit elements, which are widened first; scratch: rows x k fp32.
  void tile(const void* a, std::int64_t rows, Range columns, float* scratch, float* out,
            std::int64_t leading) const;

 private:
  const GemmShape shape_;
  std::unique_ptr<float[]> b_;
};

}  // namespace mkernel::kernels

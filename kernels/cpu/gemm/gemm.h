// The cpu executor's tensor core: its one fp32 product, by way of a BLAS; bf16/fp16 in, fp32 out; the tiles
// that suit it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/cpu/memory/floats.h"
#include "kernels/plan/sm90_tile.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// How the second operand of sgemm() lies in memory.
enum class Transpose { kNo, kYes };

/// c[m, n] = a[m, k] x op(b), or c += with `accumulate`, on the caller's thread; all row-major with `ld*`
/// elements between rows. b: [k, n], or [n, k] with Transpose::kYes. Any number of threads at a time; the
/// result depends on values and shape only, never on the caller or its neighbours.
void sgemm(Transpose transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
           std::int64_t lda, const float* b, std::int64_t ldb, bool accumulate, float* c, std::int64_t ldc);

/// Products with one second operand b: [k, n] row-major or [n, k] column-major. b is widened to fp32 once
/// per launch, panels of a once per tile. Each call runs on its caller's thread; convert_b() of all parts
/// happens before any tile() of the launch.
class CpuGemm {
 public:
  /// Allocates the fp32 copy of b; throws std::bad_alloc.
  explicit CpuGemm(const GemmShape& shape);

  /// Widens part `part` of `parts` of b.
  void convert_b(const void* b, int part, int parts);
  /// The same for `columns` of b, which lie at `from` as a dense matrix of their own, in the layout of b.
  void convert_columns_of_b(const void* from, Range columns, int part, int parts);

  /// out[r, c] = sum_k a[r, k] x b[k, columns.begin + c]; a: `rows` dense rows of k fp32, out: fp32 with
  /// `leading` elements between rows. The result depends on nothing but the values and the shape of the tile.
  void product(const float* a, std::int64_t rows, Range columns, float* out, std::int64_t leading) const;

  /// The same for rows of 16-bit elements, which are widened first; scratch: rows x k fp32.
  void tile(const void* a, std::int64_t rows, Range columns, float* scratch, float* out,
            std::int64_t leading) const;

 private:
  const GemmShape shape_;
  Floats b_;
};

/// Tiles for the plans of a product on the cpu executor: as large as one BLAS call needs to be as fast as a
/// large one, but no larger than what a rank has. Over several nodes columns are narrower where wide ones
/// would pad what travels by more than an eighth.
TileSize host_tile(const GemmShape& shape, const Topology& topology);

}  // namespace mkernel::kernels

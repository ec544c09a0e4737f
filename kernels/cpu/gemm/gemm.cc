#include "kernels/cpu/gemm/gemm.h"

#include <blis.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/cpu/memory/convert.h"
#include "kernels/plan/cuts.h"
#include "kernels/plan/reduce_units.h"

namespace mkernel::kernels {

namespace {

constexpr std::int64_t kMostRows = 256, kFewestColumns = 64, kMostColumns = 1024;
// Units of sums lie in one tile (plan/reduce_units.h).
constexpr std::int64_t kFewestRows = kReduceUnitElements / kFewestColumns;

std::int64_t power_of_two(std::int64_t at_least) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(at_least)));
}

}  // namespace

void sgemm(Transpose transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
           std::int64_t lda, const float* b, std::int64_t ldb, bool accumulate, float* c, std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  float one = 1, beta = accumulate ? 1 : 0;
  // One thread for this call, whatever BLIS_NUM_THREADS says: compute threads are the executor's to plan.
  rntm_t runtime = BLIS_RNTM_INITIALIZER;
  bli_rntm_set_num_threads(1, &runtime);
  bli_rntm_disable_l3_sup(&runtime);  // kernels that read operands in place read beyond them (README)
  const trans_t trans_b = transpose_b == Transpose::kYes ? BLIS_TRANSPOSE : BLIS_NO_TRANSPOSE;
  // BLIS takes operands it only reads by non-const pointer.
  bli_sgemm_ex(BLIS_NO_TRANSPOSE, trans_b, m, n, k, &one, const_cast<float*>(a), lda, 1,
               const_cast<float*>(b), ldb, 1, &beta, c, ldc, 1, nullptr, &runtime);
}

CpuGemm::CpuGemm(const GemmShape& shape) : shape_(shape), b_(make_floats(shape.n * shape.k)) {}

void CpuGemm::convert_b(const void* b, int part, int parts) {
  const Range range = block_range(shape_.n * shape_.k, parts, part);
  widen(shape_.dtype, static_cast<const std::uint16_t*>(b) + range.begin, b_.get() + range.begin,
        static_cast<std::size_t>(range.size()));
}

void CpuGemm::convert_columns_of_b(const void* from, Range columns, int part, int parts) {
  const auto* elements = static_cast<const std::uint16_t*>(from);
  if (shape_.b_layout == Layout::kColumnMajor) {
    const Range range = block_range(columns.size() * shape_.k, parts, part);
    widen(shape_.dtype, elements + range.begin, b_.get() + columns.begin * shape_.k + range.begin,
          static_cast<std::size_t>(range.size()));
    return;
  }
  const Range rows = block_range(shape_.k, parts, part);
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    widen(shape_.dtype, elements + row * columns.size(), b_.get() + row * shape_.n + columns.begin,
          static_cast<std::size_t>(columns.size()));
  }
}

void CpuGemm::tile(const void* a, std::int64_t rows, Range columns, float* scratch, float* out,
                   std::int64_t leading) const {
  widen(shape_.dtype, a, scratch, static_cast<std::size_t>(rows * shape_.k));
  product(scratch, rows, columns, out, leading);
}

void CpuGemm::product(const float* a, std::int64_t rows, Range columns, float* out,
                      std::int64_t leading) const {
  const bool row_major = shape_.b_layout == Layout::kRowMajor;
  const float* b = b_.get() + (row_major ? columns.begin : columns.begin * shape_.k);
  sgemm(row_major ? Transpose::kNo : Transpose::kYes, rows, columns.size(), shape_.k, a, shape_.k, b,
        row_major ? shape_.n : shape_.k, false, out, leading);
}

TileSize host_tile(const GemmShape& shape, const Topology& topology) {
  const std::int64_t rows = ceil_div(shape.m, topology.world());
  std::int64_t columns = std::clamp(power_of_two(shape.n), kFewestColumns, kMostColumns);
  const auto padded = [&] { return ceil_div(shape.n, columns) * columns - shape.n; };
  while (topology.nodes() > 1 && columns > kFewestColumns && padded() > shape.n / 8) columns /= 2;
  return {static_cast<std::int32_t>(std::clamp(power_of_two(rows), kFewestRows, kMostRows)),
          static_cast<std::int32_t>(columns), 1};
}

}  // namespace mkernel::kernels

#include "kernels/cpu/gemm/gemm.h"

#include "kernels/cpu/gemm/sgemm.h"
#include "kernels/cpu/memory/convert.h"

namespace mkernel::kernels {

CpuGemm::CpuGemm(const GemmShape& shape)
    : shape_(shape),
      b_(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(shape.n * shape.k))) {}

void CpuGemm::convert_b(const void* b, int part, int parts) {
  const Range range = block_range(shape_.n * shape_.k, parts, part);
  widen(shape_.dtype, static_cast<const std::uint16_t*>(b) + range.begin, b_.get() + range.begin,
        static_cast<std::size_t>(range.size()));
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

}  // namespace mkernel::kernels

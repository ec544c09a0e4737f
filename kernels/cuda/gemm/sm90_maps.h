// The tensor maps that the GEMM body expects: one box per instruction of its load and store roles. Host side.
#pragma once

#include <cstdint>

#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/plan/sm90_skinny.h"
#include "kernels/plan/sm90_tile.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// a: [rows, k] row-major. `box_rows`: a_box_rows(). `leading` of all three: elements from row to row, 0 =
/// dense.
inline MatrixView sm90_a_view(std::int32_t box_rows, DataType type, const void* base, std::int64_t rows,
                              std::int64_t k, std::int64_t leading = 0) {
  return {base, type, rows, k, leading, box_rows, kSm90TileK};
}

/// The same of the body for few rows: a box has all rows, those that are padding too.
inline MatrixView sm90_skinny_a_view(const Sm90SkinnyPlan& plan, const GemmShape& shape, const void* base) {
  return {base, shape.dtype, shape.m, shape.k, 0, plan.rows, kSm90TileK};
}

/// b: [k, n] row-major or [n, k] column-major.
inline MatrixView sm90_b_view(DataType type, Layout layout, const void* base, std::int64_t n, std::int64_t k,
                              std::int64_t leading = 0) {
  if (layout == Layout::kRowMajor) return {base, type, k, n, leading, kSm90TileK, 64};
  return {base, type, n, k, leading, 64, kSm90TileK};
}

/// `count` matrices b, one behind the other: the third coordinate of a box is the row of memory with which
/// its matrix begins. `rows`: of memory, from one matrix to the next.
inline MatrixView sm90_b_views(MatrixView first, std::int64_t count, std::int64_t rows) {
  first.first_rows = (count - 1) * rows + 1;
  return first;
}

/// c: [rows, n] row-major, in pieces of 64 rows x 128 bytes; the first of its rows may be any of
/// `first_rows` rows from `base` on.
inline MatrixView sm90_c_view(DataType type, const void* base, std::int64_t rows, std::int64_t n,
                              std::int64_t first_rows = 1) {
  return {base, type, rows, n, 0, 64, 64, first_rows};
}

}  // namespace mkernel::kernels

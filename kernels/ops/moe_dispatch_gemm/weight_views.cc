#include "kernels/ops/moe_dispatch_gemm/weight_views.h"

#include <cstddef>

namespace mkernel::kernels {
namespace {

constexpr std::int32_t kBox = 64;  // rows and columns

/// `experts` dense matrices [k, columns] in the layout of the shape.
struct Matrices {
  const MoeShape& shape;
  std::int64_t experts, k, columns;

  bool row_major() const { return shape.w_layout == Layout::kRowMajor; }
  /// Of memory, from one matrix to the next.
  std::int64_t rows() const { return row_major() ? k : columns; }
  /// `count` columns of each of them, from `first` on.
  MatrixView view(const void* base, std::int64_t first, std::int64_t count) const {
    const auto skipped = static_cast<std::ptrdiff_t>(first * (row_major() ? 1 : k) * 2);
    return {.base = static_cast<const std::byte*>(base) + skipped,
            .element = shape.dtype,
            .rows = row_major() ? k : count,
            .columns = row_major() ? count : k,
            .leading = row_major() ? columns : k,
            .box_rows = kBox,
            .box_columns = kBox,
            .first_rows = (experts - 1) * rows() + 1};
  }
};

}  // namespace

MoeWeightViews moe_weight_views(const MoeShape& shape, std::int64_t experts, const MoeArguments& arguments) {
  const std::int64_t inner = shape.intermediate;
  const bool gated = inner > 0, apart = arguments.w1_up != nullptr;
  const std::int64_t width = gated ? inner : shape.n;  // of the results of the first product
  const Matrices first{shape, experts, shape.hidden, gated && !apart ? 2 * inner : width};
  MoeWeightViews views{.w1 = first.view(arguments.w1, 0, width),
                       .weight_rows1 = static_cast<std::int32_t>(first.rows())};
  if (!gated) return views;
  views.w1_up = apart ? first.view(arguments.w1_up, 0, inner) : first.view(arguments.w1, inner, inner);
  const Matrices second{shape, experts, inner, shape.n};
  views.w2 = second.view(arguments.w2, 0, shape.n);
  views.weight_rows2 = static_cast<std::int32_t>(second.rows());
  return views;
}

}  // namespace mkernel::kernels

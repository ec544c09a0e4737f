#include "kernels/ops/moe_dispatch_gemm/matrix_views.h"

#include <cstddef>

#include "kernels/cuda/gemm/sm90_maps.h"
#include "kernels/ops/moe_dispatch_gemm/kernel.h"
#include "kernels/ops/moe_dispatch_gemm/plan.h"

namespace mkernel::kernels {
namespace {

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
    const MatrixView view =
        sm90_b_view(shape.dtype, shape.w_layout, static_cast<const std::byte*>(base) + skipped, count, k,
                    row_major() ? columns : k);
    return sm90_b_views(view, experts, rows());
  }
};

}  // namespace

MoePoolViews moe_pool_views(const MoePlan& plan, const std::byte* workspace) {
  const MoeShape& shape = plan.shape;
  const std::int64_t rows = plan.exchange.capacity_rows, inner = shape.intermediate;
  // CTAs side by side load half of the rows each.
  const auto operand = [&](std::uint64_t at, std::int64_t k) {
    return sm90_a_view(kMoeTile, shape.dtype, workspace + at, rows, k, 0, Sm90Cluster::kSideBySide);
  };
  const std::uint64_t hidden = plan.exchange.hidden(0);
  return {.rows = operand(plan.exchange.row(0), shape.hidden),
          .hidden_a = operand(hidden, inner),
          .hidden_c = sm90_c_view(shape.dtype, workspace + hidden, rows, inner)};
}

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

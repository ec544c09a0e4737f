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

/// Rows that are multiplied by w1, and what lies between the products.
MoePoolViews views_of(const MoeShape& shape, const void* rows, std::int64_t count, const std::byte* hidden,
                      std::int64_t hidden_count, std::int64_t inner) {
  // CTAs side by side load half of the rows each.
  const auto operand = [&](const void* base, std::int64_t all, std::int64_t k) {
    return sm90_a_view(a_box_rows(kMoeTile, Sm90Cluster::kSideBySide), shape.dtype, base, all, k);
  };
  return {.rows = operand(rows, count, shape.hidden),
          .hidden_a = operand(hidden, hidden_count, inner),
          .hidden_c = sm90_c_view(shape.dtype, hidden, hidden_count, inner)};
}

/// `inner`: 0 = there is only one product. `up`: null when `w1` holds both halves.
MoeWeightViews weights_of(const MoeShape& shape, std::int64_t experts, std::int64_t inner, const void* w1,
                          const void* up, const void* w2) {
  const bool gated = inner > 0, apart = up != nullptr;
  const std::int64_t width = gated ? inner : shape.n;  // of the results of the first product
  const Matrices first{shape, experts, shape.hidden, gated && !apart ? 2 * inner : width};
  MoeWeightViews views{.w1 = first.view(w1, 0, width),
                       .weight_rows1 = static_cast<std::int32_t>(first.rows())};
  if (!gated) return views;
  views.w1_up = apart ? first.view(up, 0, inner) : first.view(w1, inner, inner);
  const Matrices second{shape, experts, inner, shape.n};
  views.w2 = second.view(w2, 0, shape.n);
  views.weight_rows2 = static_cast<std::int32_t>(second.rows());
  return views;
}

}  // namespace

MoePoolViews moe_pool_views(const MoePlan& plan, const std::byte* workspace) {
  const std::int64_t rows = plan.exchange.capacity_rows;
  return views_of(plan.shape, workspace + plan.exchange.row(0), rows, workspace + plan.exchange.hidden(0),
                  rows, plan.shape.intermediate);
}

MoePoolViews moe_shared_views(const MoePlan& plan, const std::byte* workspace, const void* x,
                              std::int64_t tokens) {
  return views_of(plan.shape, x, tokens, workspace + plan.exchange.shared_hidden(0), plan.shape.max_tokens,
                  plan.shape.shared_intermediate);
}

MoeWeightViews moe_weight_views(const MoeShape& shape, std::int64_t experts, const MoeArguments& arguments) {
  return weights_of(shape, experts, shape.intermediate, arguments.w1, arguments.w1_up, arguments.w2);
}

MoeWeightViews moe_shared_weight_views(const MoeShape& shape, const MoeArguments& arguments) {
  return weights_of(shape, 1, shape.shared_intermediate, arguments.shared_w1, arguments.shared_w1_up,
                    arguments.shared_w2);
}

}  // namespace mkernel::kernels

#include "kernels/ops/moe_dispatch_gemm/experts.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/memory/convert.h"

namespace mkernel::kernels {
namespace {

/// gate <- silu(gate) * up
void swiglu(float* gate, const float* up, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) gate[i] = gate[i] / (1.0F + std::exp(-gate[i])) * up[i];
}

const std::byte* matrix(const void* first, std::int64_t index, std::int64_t elements) {
  return static_cast<const std::byte*>(first) + index * elements * 2;
}

}  // namespace

ExpertScratch::ExpertScratch(const MoePlan& plan)
    : stride(std::max(plan.tile_columns, plan.gated() ? 2 * plan.gated_columns : 0)),
      rows(make_floats(plan.exchange.cut.block * std::max({plan.shape.hidden, plan.shape.intermediate,
                                                           plan.shape.shared_intermediate}))),
      product(make_floats(plan.exchange.cut.block * stride)) {}

void ExpertScratch::load(DataType dtype, const std::byte* from, std::int64_t count, std::int64_t elements,
                         std::uint64_t row_bytes) const {
  for (std::int64_t row = 0; row < count; ++row, from += row_bytes)
    widen(dtype, from, rows.get() + row * elements, static_cast<std::size_t>(elements));
}

ExpertWeights::ExpertWeights(const MoePlan& plan, std::int64_t intermediate)
    : gated_columns_(plan.gated_columns),
      hidden_(plan.shape.hidden),
      intermediate_(intermediate),
      n_(plan.shape.n),
      first_(GemmShape{0, intermediate > 0 ? 2 * intermediate : n_, hidden_, plan.shape.dtype,
                       plan.shape.w_layout}) {
  if (intermediate > 0)
    second_.emplace(GemmShape{0, n_, intermediate, plan.shape.dtype, plan.shape.w_layout});
}

void ExpertWeights::widen(std::int64_t index, const void* w1, const void* up, const void* w2, int part,
                          int parts) {
  const std::int64_t half = hidden_ * intermediate_;
  if (up == nullptr) {
    first_.convert_b(matrix(w1, index, second_ ? 2 * half : hidden_ * n_), part, parts);
  } else {
    first_.convert_columns_of_b(matrix(w1, index, half), {0, intermediate_}, part, parts);
    first_.convert_columns_of_b(matrix(up, index, half), {intermediate_, 2 * intermediate_}, part, parts);
  }
  if (second_) second_->convert_b(matrix(w2, index, intermediate_ * n_), part, parts);
}

void ExpertWeights::first(std::int64_t rows, Range columns, const ExpertScratch& scratch) const {
  float* gate = scratch.product.get();
  first_.product(scratch.rows.get(), rows, columns, gate, scratch.stride);
  if (!second_) return;
  float* up = gate + gated_columns_;
  const Range ups{intermediate_ + columns.begin, intermediate_ + columns.end};
  first_.product(scratch.rows.get(), rows, ups, up, scratch.stride);
  for (std::int64_t row = 0; row < rows; ++row, gate += scratch.stride, up += scratch.stride)
    swiglu(gate, up, columns.size());
}

void ExpertWeights::second(std::int64_t rows, Range columns, const ExpertScratch& scratch) const {
  second_->product(scratch.rows.get(), rows, columns, scratch.product.get(), scratch.stride);
}

ExpertLayer::ExpertLayer(const MoePlan& plan, std::uint32_t rank) {
  for (std::int64_t i = 0; i < plan.experts(rank).size(); ++i)
    experts_.emplace_back(plan, plan.shape.intermediate);
  if (plan.shared()) shared_.emplace(plan, plan.shape.shared_intermediate);
}

void ExpertLayer::widen(const MoeArguments& arguments, int part, int parts) {
  const MoeArguments& given = arguments;
  for (std::size_t i = 0; i < experts_.size(); ++i) {
    experts_[i].widen(static_cast<std::int64_t>(i), given.w1, given.w1_up, given.w2, part, parts);
  }
  if (shared_) shared_->widen(0, given.shared_w1, given.shared_w1_up, given.shared_w2, part, parts);
}

}  // namespace mkernel::kernels

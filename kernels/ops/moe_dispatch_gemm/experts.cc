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

const std::byte* matrix(const void* first, std::size_t index, std::int64_t elements) {
  return static_cast<const std::byte*>(first) + static_cast<std::int64_t>(index) * elements * 2;
}

}  // namespace

ExpertScratch::ExpertScratch(const MoePlan& plan)
    : stride(std::max(plan.tile_columns, plan.gated() ? 2 * plan.gated_columns : 0)),
      rows(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(
          plan.exchange.cut.block * std::max(plan.shape.hidden, plan.shape.intermediate)))),
      product(std::make_unique_for_overwrite<float[]>(
          static_cast<std::size_t>(plan.exchange.cut.block * stride))) {}

void ExpertScratch::load(DataType dtype, const std::byte* from, std::int64_t count, std::int64_t elements,
                         std::uint64_t row_bytes) const {
  for (std::int64_t row = 0; row < count; ++row, from += row_bytes)
    widen(dtype, from, rows.get() + row * elements, static_cast<std::size_t>(elements));
}

ExpertLayer::ExpertLayer(const MoePlan& plan, std::uint32_t rank) : plan_(plan) {
  const MoeShape& shape = plan.shape;
  for (std::int64_t i = 0; i < plan.experts(rank).size(); ++i) {
    first_.emplace_back(GemmShape{0, plan.w1_columns(), shape.hidden, shape.dtype, shape.w_layout});
    if (!plan.gated()) continue;
    second_.emplace_back(GemmShape{0, shape.n, shape.intermediate, shape.dtype, shape.w_layout});
  }
}

void ExpertLayer::widen(const MoeArguments& arguments, int part, int parts) {
  const MoeShape& shape = plan_.shape;
  const Range gates{0, shape.intermediate}, ups{shape.intermediate, 2 * shape.intermediate};
  for (std::size_t i = 0; i < first_.size(); ++i) {
    if (arguments.w1_up == nullptr) {
      first_[i].convert_b(matrix(arguments.w1, i, shape.hidden * plan_.w1_columns()), part, parts);
      continue;
    }
    const std::int64_t half = shape.hidden * shape.intermediate;
    first_[i].convert_columns_of_b(matrix(arguments.w1, i, half), gates, part, parts);
    first_[i].convert_columns_of_b(matrix(arguments.w1_up, i, half), ups, part, parts);
  }
  for (std::size_t i = 0; i < second_.size(); ++i)
    second_[i].convert_b(matrix(arguments.w2, i, shape.intermediate * shape.n), part, parts);
}

void ExpertLayer::first(std::int32_t expert, std::int64_t rows, Range columns,
                        const ExpertScratch& scratch) const {
  const CpuGemm& gemm = first_[static_cast<std::size_t>(expert)];
  float* gate = scratch.product.get();
  gemm.product(scratch.rows.get(), rows, columns, gate, scratch.stride);
  if (!plan_.gated()) return;
  float* up = gate + plan_.gated_columns;
  const std::int64_t values = plan_.shape.intermediate;
  gemm.product(scratch.rows.get(), rows, {values + columns.begin, values + columns.end}, up, scratch.stride);
  for (std::int64_t row = 0; row < rows; ++row, gate += scratch.stride, up += scratch.stride)
    swiglu(gate, up, columns.size());
}

void ExpertLayer::second(std::int32_t expert, std::int64_t rows, Range columns,
                         const ExpertScratch& scratch) const {
  second_[static_cast<std::size_t>(expert)].product(scratch.rows.get(), rows, columns, scratch.product.get(),
                                                    scratch.stride);
}

}  // namespace mkernel::kernels

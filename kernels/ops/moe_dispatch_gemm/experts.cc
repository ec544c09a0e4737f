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
    : rows(MoePlan::kBlockRows * plan.row_bytes()),
      widened(static_cast<std::size_t>(MoePlan::kBlockRows *
                                       std::max(plan.shape().hidden, plan.shape().intermediate))),
      first(static_cast<std::size_t>(MoePlan::kBlockRows * 2 * plan.shape().intermediate)),
      hidden(static_cast<std::size_t>(MoePlan::kBlockRows * 2 * plan.shape().intermediate)) {}

ExpertLayer::ExpertLayer(const MoePlan& plan, std::uint32_t rank) : plan_(plan) {
  const MoeShape& shape = plan.shape();
  for (std::int64_t i = 0; i < plan.experts(rank).size(); ++i) {
    first_.emplace_back(GemmShape{0, plan.w1_columns(), shape.hidden, shape.dtype, Layout::kRowMajor});
    if (shape.intermediate == 0) continue;
    second_.emplace_back(GemmShape{0, shape.n, shape.intermediate, shape.dtype, Layout::kRowMajor});
  }
}

void ExpertLayer::widen(const void* w1, const void* w2, int part, int parts) {
  const MoeShape& shape = plan_.shape();
  for (std::size_t i = 0; i < first_.size(); ++i) {
    first_[i].convert_b(matrix(w1, static_cast<std::int64_t>(i), shape.hidden * plan_.w1_columns()), part,
                        parts);
  }
  for (std::size_t i = 0; i < second_.size(); ++i) {
    second_[i].convert_b(matrix(w2, static_cast<std::int64_t>(i), shape.intermediate * shape.n), part, parts);
  }
}

void ExpertLayer::run(std::int64_t expert, std::int64_t rows, ExpertScratch& scratch, float* out) const {
  const MoeShape& shape = plan_.shape();
  const std::int64_t columns = plan_.w1_columns();
  float* product = shape.intermediate > 0 ? scratch.first.data() : out;
  first_[static_cast<std::size_t>(expert)].tile(scratch.rows.data(), rows, {0, columns},
                                                scratch.widened.data(), product, columns);  // [rows, columns]
  if (shape.intermediate == 0) return;
  for (std::int64_t row = 0; row < rows; ++row) {
    float* gate = product + row * columns;
    swiglu(gate, gate + shape.intermediate, shape.intermediate);
    narrow(shape.dtype, gate, scratch.hidden.data() + row * shape.intermediate * 2,
           static_cast<std::size_t>(shape.intermediate));
  }
  second_[static_cast<std::size_t>(expert)].tile(scratch.hidden.data(), rows, {0, shape.n},
                                                 scratch.widened.data(), out, shape.n);  // [rows, n]
}

}  // namespace mkernel::kernels

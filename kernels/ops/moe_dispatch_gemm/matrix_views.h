// The pool of a rank, and the weights of its experts, as the tensor maps of the cuda executor see them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/memory/tensor_map.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

struct MoePlan;

/// MoeParameters' of these names. Rows are whole 16 bytes: hidden and intermediate are multiples of 8.
struct MoePoolViews {
  MatrixView rows;
  MatrixView hidden_a, hidden_c;  ///< only with two products
};

/// Pure. `workspace`: of this rank.
MoePoolViews moe_pool_views(const MoePlan& plan, const std::byte* workspace);

/// One box per load of the kernel. Of each operand the matrices of all experts lie one behind the other: the
/// third coordinate of an expert's boxes is its local number times the rows from one matrix to the next.
struct MoeWeightViews {
  MatrixView w1;     ///< MoeParameters' of these names
  MatrixView w1_up;  ///< only with two products, as the next one
  MatrixView w2;
  std::int32_t weight_rows1 = 0, weight_rows2 = 0;
};

/// Pure. `experts`: of this rank, at least 1.
MoeWeightViews moe_weight_views(const MoeShape& shape, std::int64_t experts, const MoeArguments& arguments);

}  // namespace mkernel::kernels

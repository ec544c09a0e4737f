// The pool of a rank, the weights of its experts, and what the shared expert has, as the tensor maps of the
// cuda executor see them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/memory/tensor_map.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

struct MoePlan;

/// MoeOperands' of these names. Rows are whole 16 bytes: hidden and both intermediates are multiples of 8.
struct MoePoolViews {
  MatrixView rows;
  MatrixView hidden_a, hidden_c;  ///< only with two products
};

/// Pure. `workspace`: of this rank.
MoePoolViews moe_pool_views(const MoePlan& plan, const std::byte* workspace);
/// The same of the shared expert, whose rows are `tokens` tokens, at least 1.
MoePoolViews moe_shared_views(const MoePlan& plan, const std::byte* workspace, const void* x,
                              std::int64_t tokens);

/// One box per load of the kernel. Of each operand the matrices of all experts lie one behind the other: the
/// third coordinate of an expert's boxes is its local number times the rows from one matrix to the next.
struct MoeWeightViews {
  MatrixView w1;     ///< MoeOperands' of these names
  MatrixView w1_up;  ///< only with two products, as the next one
  MatrixView w2;
  std::int32_t weight_rows1 = 0, weight_rows2 = 0;
};

/// Pure. `experts`: of this rank, at least 1.
MoeWeightViews moe_weight_views(const MoeShape& shape, std::int64_t experts, const MoeArguments& arguments);
/// Of the shared expert, which there is.
MoeWeightViews moe_shared_weight_views(const MoeShape& shape, const MoeArguments& arguments);

}  // namespace mkernel::kernels

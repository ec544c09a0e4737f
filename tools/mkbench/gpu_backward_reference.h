// The check of the gradients of attention on the GPU against fp64. Plain C++: no CUDA header needed.
#pragma once

#include <cstdint>

#include "kernels/plan/positions.h"
#include "mkernel/ops.h"
#include "proto/abi/status.h"
#include "tools/mkbench/gpu_matrix.h"

namespace mkernel::bench {

/// Which gradients there are: positions of the sequence. Of several `parts`, what each gives of the gradients
/// of keys and values is rounded before these are summed; of several `nodes` of parts the sum of each is
/// rounded, too.
struct GradientRows {
  kernels::Positions queries, keys;
  std::int64_t parts = 1, nodes = 1;

  /// Of a rank alone. `shape` with `keys` filled in.
  static GradientRows all(const AttentionShape& shape) {
    return {.queries = {{Range{0, shape.sequence}, Range{}}}, .keys = {{Range{0, shape.keys}, Range{}}}};
  }
};

/// Compares the gradients of every `step`-th query, and of every `step`-th key and value (of all heads and
/// batch entries, one after the other), with those that follow in fp64 from the other operands, out and lse
/// among them, which are those of the whole sequence. `shape` with `keys` filled in, head_dim at most 128.
/// The bound is that of tests/support/attention_backward_reference.cc with weights in the io type. An element
/// that is wrong is named by its place in d_q, or in d_k or d_v. `lse_stride`: from one head's log-sum-exps
/// to the next one's; 0 = as many as queries. Synchronous.
Result<ProductCheck> check_attention_backward(const AttentionBackwardArguments& arguments,
                                              const AttentionShape& shape, const GradientRows& rows,
                                              std::int64_t step, CUstream_st* stream,
                                              std::int64_t lse_stride = 0);

}  // namespace mkernel::bench

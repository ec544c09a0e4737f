// The check of the gradients of attention on the GPU against fp64. Plain C++: no CUDA header needed.
#pragma once

#include <cstdint>

#include "mkernel/ops.h"
#include "proto/abi/status.h"
#include "tools/mkbench/gpu_matrix.h"

namespace mkernel::bench {

/// Compares the gradients of every `step`-th query, and of every `step`-th key and value (of all heads and
/// batch entries, one after the other), with those that follow in fp64 from the other operands, out and lse
/// among them. `shape` with `keys` filled in, without a window, head_dim at most 128. The bound is that of
/// tests/support/attention_backward_reference.cc with weights in the io type. An element that is wrong is
/// named by its place in d_q, or in d_k or d_v. Synchronous.
Result<ProductCheck> check_attention_backward(const AttentionBackwardArguments& arguments,
                                              const AttentionShape& shape, std::int64_t step,
                                              CUstream_st* stream);

}  // namespace mkernel::bench

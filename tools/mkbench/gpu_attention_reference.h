// The check of attention on the GPU against fp64. Plain C++: no CUDA header needed.
#pragma once

#include <cstdint>

#include "kernels/plan/positions.h"
#include "mkernel/ops.h"
#include "proto/abi/status.h"
#include "tools/mkbench/gpu_matrix.h"

namespace mkernel::bench {

/// Compares the outputs of every `step`-th query (of all heads and batch entries, one after the other) with
/// softmax(scale q k^T + mask) v in fp64, and their log-sum-exps unless lse is null. k and v are whole,
/// `shape` with `keys` filled in, head_dim at most 128. `queries`: positions of those that q holds, counted
/// as keys are; a causal mask hides keys behind them. The bound is that of
/// tests/support/attention_reference.cc with weights in the io type. An element that is wrong is named by its
/// place in `out`, a log-sum-exp by its query's first. `lse_stride`: from one head's log-sum-exps to the
/// next one's; 0 = as many as queries. Synchronous.
Result<ProductCheck> check_attention(const AttentionArguments& arguments, const AttentionShape& shape,
                                     const kernels::Positions& queries, std::int64_t step,
                                     CUstream_st* stream, std::int64_t lse_stride = 0);

}  // namespace mkernel::bench

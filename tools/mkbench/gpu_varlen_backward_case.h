// Operands of the backward pass of attention of sequences of different lengths on one GPU: random inputs,
// poisoned gradients, and their check against fp64. Plain C++: no CUDA header needed.
#pragma once

#include <cstdint>
#include <utility>

#include "mkernel/ops.h"
#include "proto/abi/status.h"
#include "tools/mkbench/gpu_matrix.h"
#include "tools/mkbench/gpu_varlen_case.h"

namespace mkernel::bench {

/// One set of operands of a shape with max_sequences. Outputs and log-sum-exps of attention are for attention
/// to give, before the backward pass runs. Members that have no result of their own queue on `stream`.
class GpuVarlenBackwardCase {
 public:
  using Lengths = GpuVarlenCase::Lengths;

  static Result<GpuVarlenBackwardCase> make(AttentionShape shape);

  /// Of attention.
  AttentionArguments forward() const { return operands_.arguments(); }
  AttentionBackwardArguments arguments() const;
  /// New inputs, and poison into what attention and the backward pass write. `scale`: of queries and keys.
  Status fill(std::uint64_t seed, CUstream_st* stream, float scale = 1);
  Status poison_gradients(CUstream_st* stream);
  /// Other lengths, which nothing checks.
  Status set_lengths(const Lengths& q, const Lengths& k, CUstream_st* stream) {
    return operands_.set_lengths(q, k, stream);
  }
  /// Every `step`-th row of the gradients that a launch with these lengths has left. Synchronous.
  Result<ProductCheck> check(const Lengths& q, const Lengths& k, std::int64_t step,
                             CUstream_st* stream) const;
  /// Of the gradients. Synchronous.
  Result<std::uint64_t> digest(CUstream_st* stream) const;
  /// Elements of the gradients of queries from row `query` on, and of keys and values from row `key` on, that
  /// are no poison any more. Synchronous.
  Result<std::uint64_t> written_from(std::int64_t query, std::int64_t key, CUstream_st* stream) const;

 private:
  GpuVarlenBackwardCase(const AttentionShape& shape, GpuVarlenCase operands)
      : shape_(shape), operands_(std::move(operands)) {}

  AttentionShape shape_;  ///< with `keys` filled in
  GpuVarlenCase operands_;
  GpuBuffer d_out_, d_q_, d_k_, d_v_;
};

}  // namespace mkernel::bench

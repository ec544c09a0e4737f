// Operands of the backward pass of attention of a rank alone on one GPU: random inputs, poisoned gradients,
// and their check against fp64. Plain C++: no CUDA header needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "mkernel/ops.h"
#include "proto/abi/status.h"
#include "tools/mkbench/gpu_attention_case.h"
#include "tools/mkbench/gpu_matrix.h"

namespace mkernel::bench {

/// Several sets of operands. Outputs and log-sum-exps of attention are for attention to give, before the
/// backward pass runs. Members that have no result of their own queue on `stream`.
class GpuBackwardCase {
 public:
  static Result<GpuBackwardCase> make(AttentionShape shape, int sets = 1);

  /// Of attention.
  AttentionArguments forward(int set = 0) const { return operands_.arguments(set); }
  AttentionBackwardArguments arguments(int set = 0) const;
  /// New inputs, and poison into what attention and the backward pass write. `scale`: of queries and keys.
  Status fill(int set, std::uint64_t seed, CUstream_st* stream, float scale = 1);
  Status poison_gradients(int set, CUstream_st* stream);
  /// Every `step`-th row of the gradients that a launch has left. Synchronous.
  Result<ProductCheck> check(int set, std::int64_t step, CUstream_st* stream) const;
  /// Of the gradients. Synchronous.
  Result<std::uint64_t> digest(int set, CUstream_st* stream) const;

 private:
  struct Set {
    GpuBuffer d_out, d_q, d_k, d_v;
  };

  GpuBackwardCase(const AttentionShape& shape, GpuAttentionCase operands)
      : shape_(shape), operands_(std::move(operands)) {}
  const Set& of(int set) const { return sets_[static_cast<std::size_t>(set)]; }

  AttentionShape shape_;  ///< with `keys` filled in
  GpuAttentionCase operands_;
  std::vector<Set> sets_;
};

/// One of all three. Synchronous.
Result<std::uint64_t> digest_of_gradients(const GpuBuffer& d_q, const GpuBuffer& d_k, const GpuBuffer& d_v,
                                          CUstream_st* stream);

}  // namespace mkernel::bench

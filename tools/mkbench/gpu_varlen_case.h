// Operands of attention of sequences of different lengths on one GPU: random inputs, poisoned outputs, and
// their check against fp64. Plain C++: no CUDA header needed.
#pragma once

#include <cstdint>
#include <vector>

#include "mkernel/ops.h"
#include "proto/abi/status.h"
#include "tools/mkbench/gpu_matrix.h"

namespace mkernel::bench {

/// One set of operands of a shape with max_sequences. Members queue on `stream`.
class GpuVarlenCase {
 public:
  using Lengths = std::vector<std::int32_t>;  ///< as cu_seqlens, max_sequences + 1 of them

  static Result<GpuVarlenCase> make(const AttentionShape& shape);

  AttentionArguments arguments() const;
  /// New inputs, and poison into the outputs. `scale`: of queries and keys.
  Status fill(std::uint64_t seed, CUstream_st* stream, float scale = 1);
  /// Other lengths, which nothing checks.
  Status set_lengths(const Lengths& q, const Lengths& k, CUstream_st* stream) const;
  /// Every `step`-th query of what a launch with these lengths has left. Synchronous.
  Result<ProductCheck> check(const Lengths& q, const Lengths& k, std::int64_t step,
                             CUstream_st* stream) const;
  /// Of the outputs. Synchronous.
  Result<std::uint64_t> digest(CUstream_st* stream) const;
  /// Elements of `out` from row `first` on that are no poison any more. Synchronous.
  Result<std::uint64_t> written_from(std::int64_t first, CUstream_st* stream) const;

 private:
  explicit GpuVarlenCase(const AttentionShape& shape);

  AttentionShape shape_;  ///< with `keys` filled in
  GpuBuffer q_, k_, v_, out_, lse_, cu_seqlens_q_, cu_seqlens_k_;
};

/// Adds what was found of one sequence, whose first element is number `first`, to `all`.
void add_check(const ProductCheck& one, std::int64_t first, ProductCheck& all);
/// Elements of two bytes behind the first `bytes` of poisoned memory that are no poison any more.
/// Synchronous.
Result<std::uint64_t> written_behind(const GpuBuffer& buffer, std::uint64_t bytes, CUstream_st* stream);

}  // namespace mkernel::bench

// Operands of attention of sequences of different lengths on one GPU: random inputs, poisoned outputs, and
// their check against fp64. Plain C++: no CUDA header needed.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/plan/positions.h"
#include "mkernel/ops.h"
#include "proto/abi/status.h"
#include "tools/mkbench/gpu_matrix.h"

namespace mkernel::bench {

/// One set of operands of a shape with max_sequences: of attention of a rank alone or, with a world of
/// several ranks, of ring attention, whose inputs of one seed are those of one whole tensor. Members queue on
/// `stream`.
class GpuVarlenCase {
 public:
  using Lengths = std::vector<std::int32_t>;  ///< as cu_seqlens, max_sequences + 1 of them

  static Result<GpuVarlenCase> make(const AttentionShape& shape, std::int64_t world = 1,
                                    std::int64_t rank = 0);

  AttentionArguments arguments() const;
  /// New inputs, and poison into the outputs. `scale`: of queries and keys. Of ring attention after
  /// set_lengths(): which rows a rank holds depends on them.
  Status fill(std::uint64_t seed, CUstream_st* stream, float scale = 1);
  /// Other lengths, which nothing checks; of ring attention those of a rank, and `k` as `q`.
  Status set_lengths(const Lengths& q, const Lengths& k, CUstream_st* stream);
  /// Every `step`-th query of what a launch with these lengths has left. Synchronous.
  Result<ProductCheck> check(const Lengths& q, const Lengths& k, std::int64_t step,
                             CUstream_st* stream) const;
  /// Of the outputs. Synchronous.
  Result<std::uint64_t> digest(CUstream_st* stream) const;
  /// Elements of `out` from row `first` on that are no poison any more. Synchronous.
  Result<std::uint64_t> written_from(std::int64_t first, CUstream_st* stream) const;

 private:
  GpuVarlenCase(const AttentionShape& shape, std::int64_t world, std::int64_t rank);

  /// Of ring attention: the rows of this rank, from those of all.
  Status take_rows(const GpuBuffer& whole, const GpuBuffer& own, CUstream_st* stream) const;
  /// Where the queries of a sequence stand whose lengths, on this rank, are these.
  kernels::Positions positions(std::int64_t queries, std::int64_t keys) const;
  const GpuBuffer& whole_k() const { return world_ > 1 ? whole_k_ : k_; }
  const GpuBuffer& whole_v() const { return world_ > 1 ? whole_v_ : v_; }

  AttentionShape shape_;  ///< of this rank's rows, with `keys` filled in
  std::int64_t world_, rank_;
  Lengths lengths_;  ///< of the queries
  GpuBuffer q_, k_, v_, out_, lse_, cu_seqlens_q_, cu_seqlens_k_;
  GpuBuffer whole_k_, whole_v_;  ///< of ring attention: all sequences, each with the positions of all ranks
};

/// Adds what was found of one sequence, whose first element is number `first`, to `all`.
void add_check(const ProductCheck& one, std::int64_t first, ProductCheck& all);
/// Elements of two bytes behind the first `bytes` of poisoned memory that are no poison any more.
/// Synchronous.
Result<std::uint64_t> written_behind(const GpuBuffer& buffer, std::uint64_t bytes, CUstream_st* stream);

}  // namespace mkernel::bench

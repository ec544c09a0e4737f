// Operands of attention on one GPU, of a rank alone or of one that holds a part of the sequence: random
// inputs, poisoned outputs, and their check against fp64. Plain C++: no CUDA header needed.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/plan/positions.h"
#include "mkernel/ops.h"
#include "proto/abi/status.h"
#include "tools/mkbench/gpu_matrix.h"

namespace mkernel::bench {

inline constexpr std::int64_t kElementBytes = 2;  ///< of every io type

/// Several sets of operands. Keys and values of the whole sequence depend on the seed alone: a rank makes
/// them, and takes its own rows from there. Members that have no result of their own queue on `stream`.
class GpuAttentionCase {
 public:
  /// Rank `rank` of `world`; a rank alone is the only one of its world, and may have keys of another number.
  static Result<GpuAttentionCase> make(const AttentionShape& shape, std::int64_t world, std::int64_t rank,
                                       int sets = 1);

  AttentionArguments arguments(int set = 0) const;
  /// New inputs, and poison into the outputs. `scale`: of queries and keys.
  Status fill(int set, std::uint64_t seed, CUstream_st* stream, float scale = 1);
  /// Every `step`-th query of what a launch has left. Synchronous. Makes the keys and values of the whole
  /// sequence again when another set was filled last.
  Result<ProductCheck> check(int set, std::int64_t step, CUstream_st* stream);
  /// Of the outputs. Synchronous.
  Result<std::uint64_t> digest(int set, CUstream_st* stream) const;

 private:
  struct Set {
    GpuBuffer q, k, v, out, lse;
    std::uint64_t seed = 0;
    float scale = 1;
  };

  GpuAttentionCase(const AttentionShape& shape, std::int64_t world, std::int64_t rank);
  Status allocate(Set& set) const;
  Status make_whole(const Set& set, CUstream_st* stream);
  Status take_rows(const GpuBuffer& whole, const GpuBuffer& own, CUstream_st* stream) const;

  AttentionShape shape_;  ///< with `keys` filled in
  std::int64_t world_, rank_;
  kernels::Positions queries_;  ///< that this rank holds, as positions of keys
  std::int64_t own_keys_;
  std::vector<Set> sets_;
  GpuBuffer whole_k_, whole_v_;  ///< of a world of several: [batch, keys, kv_heads, head_dim]
  int made_ = -1;                ///< the set whose they are
};

}  // namespace mkernel::bench

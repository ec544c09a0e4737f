// Operands of the backward pass of ring attention of one rank on a GPU: random inputs, poisoned gradients,
// and their check against fp64. Plain C++: no CUDA header needed.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/plan/positions.h"
#include "mkernel/ops.h"
#include "proto/abi/status.h"
#include "tools/mkbench/gpu_backward_case.h"
#include "tools/mkbench/gpu_matrix.h"

namespace mkernel::bench {

/// Several sets of operands. Those of the whole sequence depend on the seed alone: every rank makes them,
/// lets attention of a rank alone make their outputs, and takes its own rows from there.
class GpuRingBackwardCase {
 public:
  /// Queues attention of the whole sequence.
  using Attend = std::function<Status(const AttentionArguments&)>;

  static Result<GpuRingBackwardCase> make(const AttentionShape& shape, std::int64_t world, std::int64_t rank,
                                          int sets);

  /// Of several nodes the sums are rounded once more.
  void set_nodes(std::int64_t nodes) { nodes_ = nodes; }
  AttentionBackwardArguments arguments(int set) const;
  /// New inputs, and poison into the gradients. Queues on `stream`, as `attend` must.
  Status fill(int set, std::uint64_t seed, CUstream_st* stream, const Attend& attend);
  /// Every `step`-th row of the gradients that a launch has left. Synchronous. Makes the whole sequence again
  /// when another set was filled last.
  Result<ProductCheck> check(int set, std::int64_t step, CUstream_st* stream, const Attend& attend);
  /// Of the gradients. Synchronous.
  Result<std::uint64_t> digest(int set, CUstream_st* stream) const;

 private:
  struct Set {
    GpuBuffer q, k, v, out, d_out, lse, d_q, d_k, d_v;
    std::uint64_t seed = 0;
  };

  GpuRingBackwardCase(const AttentionShape& shape, GpuBackwardCase whole, std::int64_t world,
                      std::int64_t rank)
      : shape_(shape),
        whole_(std::move(whole)),
        world_(world),
        held_(kernels::held_positions(shape.sequence, shape.causal, world, rank)) {}
  Status allocate(Set& set) const;
  Status make_whole(int set, CUstream_st* stream, const Attend& attend);
  Status take_rows(const Set& set, CUstream_st* stream) const;

  AttentionShape shape_;
  GpuBackwardCase whole_;
  std::int64_t world_, nodes_ = 1;
  kernels::Positions held_;
  std::vector<Set> sets_;
  int made_ = -1;  ///< the set whose the whole sequence is
};

}  // namespace mkernel::bench

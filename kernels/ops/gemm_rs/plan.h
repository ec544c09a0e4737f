// Plan of GEMM+RS: c[m_rank, n] = rows of the sum over ranks of a[m, k] x b[k, n].
#pragma once

#include <cstdint>

#include "kernels/plan/reduce_plan.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Pure; the same on every rank. Lane 0: node partials to their owners; lane 1: the owners' credits.
class GemmRsPlan {
 public:
  static constexpr std::uint32_t kLanes = 2;

  /// Errors: check_shape().
  static Result<GemmRsPlan> make(const GemmShape& shape, const Topology& topology,
                                 const ReduceOptions& options = {});

  const ReducePlan& reduce() const { return reduce_; }
  std::uint64_t workspace_bytes() const { return reduce_.end(); }
  /// Rows of c that `owner` gets.
  Range rows(std::uint32_t owner) const { return block_range(m_, world_, owner); }

 private:
  GemmRsPlan(const GemmShape& shape, const Topology& topology, const ReduceOptions& options)
      : m_(shape.m), world_(topology.world()), reduce_(topology, shape.m, shape.n, options, 0) {}

  std::int64_t m_;
  std::uint32_t world_;
  ReducePlan reduce_;
};

}  // namespace mkernel::kernels

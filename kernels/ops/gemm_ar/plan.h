// Plan of GEMM+AR: c[m, n] = sum over ranks of a[m, k] x b[k, n], on every rank.
#pragma once

#include <cstdint>

#include "kernels/plan/gather_plan.h"
#include "kernels/plan/reduce_plan.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Pure; the same on every rank. A reduce-scatter whose owners' finished tiles are gathered: a stream is an
/// owner's packed tiles in the operation's type, cut into the same chunks as its partials were. Lane 0: node
/// partials; lane 1: credits; lane 2: finished tiles.
class GemmArPlan {
 public:
  static constexpr std::uint32_t kReduceLane = 0;
  static constexpr std::uint32_t kGatherLane = 2;
  static constexpr std::uint32_t kLanes = 3;

  /// Errors: check_shape().
  static Result<GemmArPlan> make(const GemmShape& shape, const Topology& topology,
                                 const ReduceOptions& options = {});

  const ReducePlan& reduce() const { return reduce_; }
  const GatherPlan& gather() const { return gather_; }
  std::uint64_t workspace_bytes() const { return gather_.end(); }
  /// Rows of c that `owner` sums.
  Range rows(std::uint32_t owner) const { return block_range(m_, gather_.sources(), owner); }

 private:
  GemmArPlan(const GemmShape& shape, const Topology& topology, const ReduceOptions& options);

  std::int64_t m_;
  ReducePlan reduce_;
  GatherPlan gather_;
};

}  // namespace mkernel::kernels

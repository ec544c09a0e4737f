// Plan of the mixture of experts on the cuda executor: the tiles that its kernel has, and which CTAs do what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/ops/moe_dispatch_gemm/plan.h"
#include "kernels/plan/machine.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Pure and the same on every rank.
struct MoeGpuPlan {
  MoePlan moe;
  Machine machine;                  ///< that it was made for
  std::int32_t ctas = 0;            ///< CTAs of a launch; an even number, as all numbers of CTAs here
  std::int32_t summing_ctas = 0;    ///< dispatching CTAs that do not compute: they push, and then sum
  std::int32_t foreseen_steps = 0;  ///< MoeParameters
  std::int32_t sum_parts = 1;       ///< likewise
  std::size_t routing_bytes = 0;    ///< shared memory in which a dispatching CTA keeps its routing

  /// Errors: MoePlan::make()'s, and kInvalidArgument for what the kernel does not have, naming field, value
  /// and limit.
  static Result<MoeGpuPlan> make(const MoeShape& shape, const Topology& topology, const Machine& machine,
                                 const MoeOptions& options = {});

  /// The signature of `moe`, the machine, and the numbers of CTAs: ranks whose plans differ have different
  /// signatures.
  std::string signature() const;
};

}  // namespace mkernel::kernels

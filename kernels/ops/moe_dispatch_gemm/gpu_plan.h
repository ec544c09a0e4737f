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
  std::int32_t ctas = 0;            ///< of a launch; even, as the next one and moe.dispatch_ctas
  std::int32_t summing_ctas = 0;    ///< of the dispatching CTAs: those that sum when they have pushed
  std::int32_t foreseen_steps = 0;  ///< MoeParameters
  std::size_t routing_bytes = 0;    ///< of shared memory, that a dispatching CTA has for its routing

  /// Errors: MoePlan::make()'s, and kInvalidArgument for what the kernel does not have, naming field, value
  /// and limit.
  static Result<MoeGpuPlan> make(const MoeShape& shape, const Topology& topology, const Machine& machine,
                                 const MoeOptions& options = {});

  /// MoePlan's, and who does what: ranks whose plans differ are told so.
  std::string signature() const;
};

}  // namespace mkernel::kernels

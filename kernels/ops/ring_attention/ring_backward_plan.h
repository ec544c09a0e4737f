// Plan of the backward pass of ring attention on the cuda executor.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops/ring_attention/gpu_plan.h"
#include "kernels/plan/key_partials_plan.h"
#include "kernels/plan/ring_backward_tasks.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Pure; the same on every rank but for what is of this rank. Keys and values are gathered as in the forward
/// pass, and every rank computes what its queries give of all gradients. Those of its queries are whole;
/// those of keys and values go to their owners.
struct RingBackwardPlan {
  RingGpuPlan ring;  ///< of the forward pass: who gathers what, and how
  RingBackwardTasks tasks;
  KeyPartialsPlan partials;

  const AttentionShape& shape() const { return ring.shape; }
  const KvGatherPlan& gather() const { return ring.gather; }
  /// Positions that this rank holds.
  std::int32_t positions() const { return gather().positions(gather().rank); }

  /// As RingGpuPlan::make(); several nodes are refused, too.
  static Result<RingBackwardPlan> make(const AttentionShape& shape, const Topology& topology,
                                       std::uint32_t rank, const Machine& machine,
                                       const RingAttentionOptions& options = {});

  std::string signature() const;
};

}  // namespace mkernel::kernels

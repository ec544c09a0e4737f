#include "kernels/ops/ring_attention/ring_backward_plan.h"

#include <string>
#include <utility>

#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

constexpr OpKind kKind = OpKind::kRingAttentionBackward;

}  // namespace

Result<RingBackwardPlan> RingBackwardPlan::make(const AttentionShape& shape, const Topology& topology,
                                                std::uint32_t rank, const Machine& machine,
                                                const RingAttentionOptions& options) {
  auto ring = RingGpuPlan::make(shape, topology, rank, machine, options, kKind);
  if (!ring.ok()) return ring.status();
  if (topology.nodes() > 1) {
    return Status(StatusCode::kUnimplemented, std::string(name_of(kKind)) +
                                                  ": nodes = " + std::to_string(topology.nodes()) +
                                                  ", but the cuda executor has it for one node only");
  }
  RingBackwardPlan plan{.ring = std::move(*ring)};
  const auto head_dim = static_cast<std::int32_t>(shape.head_dim);
  plan.tasks = RingBackwardTasks(plan.gather(), plan.ring.ctas);
  plan.partials = KeyPartialsPlan(plan.gather(), head_dim);
  return plan;
}

std::string RingBackwardPlan::signature() const {
  return attention_signature(kKind, shape()) + " comm_ctas=" + std::to_string(ring.comm_ctas);
}

}  // namespace mkernel::kernels

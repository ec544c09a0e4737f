#include "kernels/ops/make.h"

#include <string>

#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

Status refuse(OpKind kind, const std::string& why) {
  return {StatusCode::kInvalidArgument, name_of(kind) + (": " + why)};
}

/// `maker`: the function that was called, which makes what `known` names.
Status refuse_kind(const char* maker, OpKind kind, const char* known) {
  return {StatusCode::kInvalidArgument,
          std::string(maker) + ": kind is " + name_of(kind) + ", must be " + known};
}

/// Of each rank alone: what such an operation has no use for is refused.
bool is_alone(OpKind kind) {
  return kind == OpKind::kGroupedGemm || kind == OpKind::kAttention || kind == OpKind::kAttentionBackward;
}

bool is_gemm(OpKind kind) {
  return kind == OpKind::kAgGemm || kind == OpKind::kGemmRs || kind == OpKind::kGemmAr;
}

Status check_options(OpKind kind, const MakeOptions& options) {
  const GemmPlanOptions& plan = options.plan;
  switch (options.executor) {
    case Executor::kCpu:
      if (plan == GemmPlanOptions{}) return {};
      return refuse(kind, "the cpu executor has no GemmPlanOptions to override");
    case Executor::kCuda:
      if (is_alone(kind) && (plan.comm_ctas != 0 || plan.nic_gbytes != 0))
        return refuse(kind, "comm_ctas and nic_gbytes must be 0: it does not communicate");
      if (plan.link_gbytes == 0 || is_gemm(kind)) return {};
      return refuse(kind, "link_gbytes = " + std::to_string(plan.link_gbytes) +
                              ", must be 0: its kernels do not wait for such links");
  }
  return refuse(kind, "executor = " + std::to_string(static_cast<std::uint32_t>(options.executor)) +
                          ", must be cpu (0) or cuda (1)");
}

/// Makes an operation by the function of its executor, which gets the topology of the group.
template <class Made, class OnCpu, class OnGpu>
Result<std::unique_ptr<Made>> make(OpKind kind, const GroupView& group, const MakeOptions& options,
                                   const OnCpu& on_cpu, const OnGpu& on_gpu) {
  MK_RETURN_IF_ERROR(check_options(kind, options));
  const auto topology = Topology::of(group);
  if (!topology.ok()) return topology.status();
  if (options.executor == Executor::kCuda) return on_gpu(topology.value());
  return on_cpu(topology.value());
}

Result<std::unique_ptr<GemmOperation>> make_gemm_on_cpu(OpKind kind, const GemmShape& shape,
                                                        const Topology& topology, std::uint32_t rank) {
  MK_RETURN_IF_ERROR(check_shape(kind, shape));  // before a tile is chosen for it
  switch (kind) {
    case OpKind::kAgGemm: return make_cpu_ag_gemm(shape, topology, rank);
    case OpKind::kGemmRs: return make_cpu_gemm_rs(shape, topology, rank);
    default: return make_cpu_gemm_ar(shape, topology, rank);
  }
}

}  // namespace

Result<std::unique_ptr<GemmOperation>> make_gemm(OpKind kind, const GemmShape& shape, const GroupView& group,
                                                 const MakeOptions& options) {
  if (!is_gemm(kind)) return refuse_kind("make_gemm", kind, "ag_gemm, gemm_rs or gemm_ar");
  return make<GemmOperation>(
      kind, group, options,
      [&](const Topology& on) { return make_gemm_on_cpu(kind, shape, on, group.rank()); },
      [&](const Topology& on) { return make_gemm_on_gpu(kind, shape, on, group.rank(), options); });
}

Result<std::unique_ptr<MoeOperation>> make_moe(const MoeShape& shape, const GroupView& group,
                                               const MakeOptions& options) {
  return make<MoeOperation>(
      OpKind::kMoeDispatchGemm, group, options, [&](const Topology& on) { return make_cpu_moe(shape, on); },
      [&](const Topology& on) { return make_moe_on_gpu(shape, on, group.rank(), options); });
}

Result<std::unique_ptr<AttentionOperation>> make_attention(OpKind kind, const AttentionShape& shape,
                                                           const GroupView& group,
                                                           const MakeOptions& options) {
  if (kind != OpKind::kAttention && kind != OpKind::kRingAttention)
    return refuse_kind("make_attention", kind, "ring_attention or attention");
  return make<AttentionOperation>(
      kind, group, options,
      [&](const Topology& on) {
        return is_alone(kind) ? make_cpu_attention(shape, on)
                              : make_cpu_ring_attention(shape, on, group.rank());
      },
      [&](const Topology& on) { return make_attention_on_gpu(kind, shape, on, group.rank(), options); });
}

Result<std::unique_ptr<AttentionBackwardOperation>> make_attention_backward(OpKind kind,
                                                                            const AttentionShape& shape,
                                                                            const GroupView& group,
                                                                            const MakeOptions& options) {
  if (kind != OpKind::kAttentionBackward && kind != OpKind::kRingAttentionBackward)
    return refuse_kind("make_attention_backward", kind, "ring_attention_backward or attention_backward");
  return make<AttentionBackwardOperation>(
      kind, group, options,
      [&](const Topology& on) {
        return is_alone(kind) ? make_cpu_attention_backward(shape, on)
                              : make_cpu_ring_attention_backward(shape, on, group.rank());
      },
      [&](const Topology& on) {
        return make_attention_backward_on_gpu(kind, shape, on, group.rank(), options);
      });
}

Result<std::unique_ptr<GroupedGemmOperation>> make_grouped_gemm(const GroupedGemmShape& shape,
                                                                const GroupView& group,
                                                                const MakeOptions& options) {
  return make<GroupedGemmOperation>(
      OpKind::kGroupedGemm, group, options,
      [&](const Topology& on) { return make_cpu_grouped_gemm(shape, on); },
      [&](const Topology& on) { return make_grouped_gemm_on_gpu(shape, on, group.rank(), options); });
}

}  // namespace mkernel::kernels

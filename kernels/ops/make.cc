#include "kernels/ops/make.h"

#include <string>
#include <utility>

#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

/// OK for an executor that there is.
Status check_executor(OpKind kind, Executor executor) {
  if (executor == Executor::kCpu || executor == Executor::kCuda) return {};
  return {StatusCode::kInvalidArgument, std::string(name_of(kind)) + ": executor = " +
                                            std::to_string(static_cast<std::uint32_t>(executor)) +
                                            ", must be cpu (0) or cuda (1)"};
}

Status refuse_plan_on_cpu(OpKind kind, const GemmPlanOptions& plan) {
  if (plan == GemmPlanOptions{}) return {};
  return {StatusCode::kInvalidArgument,
          std::string(name_of(kind)) + ": the cpu executor has no GemmPlanOptions to override"};
}

/// For an operation of each rank alone.
Status refuse_communication(OpKind kind, const GemmPlanOptions& plan) {
  if (plan.comm_ctas == 0 && plan.nic_gbytes == 0) return {};
  return {StatusCode::kInvalidArgument,
          std::string(name_of(kind)) + ": comm_ctas and nic_gbytes must be 0: it does not communicate"};
}

Result<std::unique_ptr<GemmOperation>> make_gemm_on_cpu(OpKind kind, const GemmShape& shape,
                                                        Topology topology, std::uint32_t rank,
                                                        const GemmPlanOptions& plan) {
  MK_RETURN_IF_ERROR(refuse_plan_on_cpu(kind, plan));
  MK_RETURN_IF_ERROR(check_shape(kind, shape));  // before a tile is chosen for it
  switch (kind) {
    case OpKind::kAgGemm: return make_cpu_ag_gemm(shape, std::move(topology), rank);
    case OpKind::kGemmRs: return make_cpu_gemm_rs(shape, std::move(topology), rank);
    default: return make_cpu_gemm_ar(shape, std::move(topology), rank);
  }
}

}  // namespace

Result<std::unique_ptr<GemmOperation>> make_gemm(OpKind kind, const GemmShape& shape, const GroupView& group,
                                                 const MakeOptions& options) {
  if (kind != OpKind::kAgGemm && kind != OpKind::kGemmRs && kind != OpKind::kGemmAr) {
    return Status(StatusCode::kInvalidArgument, std::string("make_gemm: kind is ") + name_of(kind) +
                                                    ", must be ag_gemm, gemm_rs or gemm_ar");
  }
  MK_RETURN_IF_ERROR(check_executor(kind, options.executor));
  auto topology = Topology::of(group);
  if (!topology.ok()) return topology.status();
  if (options.executor == Executor::kCpu)
    return make_gemm_on_cpu(kind, shape, std::move(topology).value(), group.rank(), options.plan);
  return make_gemm_on_gpu(kind, shape, group, std::move(topology).value(), options);
}

Result<std::unique_ptr<MoeOperation>> make_moe(const MoeShape& shape, const GroupView& group,
                                               const MakeOptions& options) {
  MK_RETURN_IF_ERROR(check_executor(OpKind::kMoeDispatchGemm, options.executor));
  auto topology = Topology::of(group);
  if (!topology.ok()) return topology.status();
  if (options.executor == Executor::kCuda) return make_moe_on_gpu(shape, group, topology.value(), options);
  MK_RETURN_IF_ERROR(refuse_plan_on_cpu(OpKind::kMoeDispatchGemm, options.plan));
  return make_cpu_moe(shape, topology.value());
}

Result<std::unique_ptr<AttentionOperation>> make_attention(OpKind kind, const AttentionShape& shape,
                                                           const GroupView& group,
                                                           const MakeOptions& options) {
  const bool alone = kind == OpKind::kAttention;
  if (!alone && kind != OpKind::kRingAttention) {
    return Status(StatusCode::kInvalidArgument, std::string("make_attention: kind is ") + name_of(kind) +
                                                    ", must be ring_attention or attention");
  }
  MK_RETURN_IF_ERROR(check_executor(kind, options.executor));
  auto topology = Topology::of(group);
  if (!topology.ok()) return topology.status();
  if (options.executor == Executor::kCpu) {
    MK_RETURN_IF_ERROR(refuse_plan_on_cpu(kind, options.plan));
    return alone ? make_cpu_attention(shape, topology.value())
                 : make_cpu_ring_attention(shape, topology.value(), group.rank());
  }
  if (alone) MK_RETURN_IF_ERROR(refuse_communication(kind, options.plan));
  return make_attention_on_gpu(kind, shape, group, topology.value(), options);
}

Result<std::unique_ptr<AttentionBackwardOperation>> make_attention_backward(OpKind kind,
                                                                            const AttentionShape& shape,
                                                                            const GroupView& group,
                                                                            const MakeOptions& options) {
  const bool alone = kind == OpKind::kAttentionBackward;
  if (!alone && kind != OpKind::kRingAttentionBackward) {
    return Status(StatusCode::kInvalidArgument,
                  std::string("make_attention_backward: kind is ") + name_of(kind) +
                      ", must be ring_attention_backward or attention_backward");
  }
  MK_RETURN_IF_ERROR(check_executor(kind, options.executor));
  auto topology = Topology::of(group);
  if (!topology.ok()) return topology.status();
  if (options.executor == Executor::kCpu) {
    MK_RETURN_IF_ERROR(refuse_plan_on_cpu(kind, options.plan));
    return alone ? make_cpu_attention_backward(shape, topology.value())
                 : make_cpu_ring_attention_backward(shape, topology.value(), group.rank());
  }
  if (alone) MK_RETURN_IF_ERROR(refuse_communication(kind, options.plan));
  return make_attention_backward_on_gpu(kind, shape, group, topology.value(), options);
}

Result<std::unique_ptr<GroupedGemmOperation>> make_grouped_gemm(const GroupedGemmShape& shape,
                                                                const GroupView& group,
                                                                const MakeOptions& options) {
  const OpKind kind = OpKind::kGroupedGemm;
  MK_RETURN_IF_ERROR(check_executor(kind, options.executor));
  auto topology = Topology::of(group);
  if (!topology.ok()) return topology.status();
  if (options.executor == Executor::kCpu) {
    MK_RETURN_IF_ERROR(refuse_plan_on_cpu(kind, options.plan));
    return make_cpu_grouped_gemm(shape, topology.value());
  }
  MK_RETURN_IF_ERROR(refuse_communication(kind, options.plan));
  return make_grouped_gemm_on_gpu(shape, group, topology.value(), options);
}

}  // namespace mkernel::kernels

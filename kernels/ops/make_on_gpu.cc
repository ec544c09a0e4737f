// The cuda executor's part of making an operation.
#include <utility>

#include "kernels/cuda/launch/gemm_operation.h"
#include "kernels/cuda/memory/kernel_types.h"
#include "kernels/cuda/memory/on_device.h"
#include "kernels/ops/make.h"

namespace mkernel::kernels {
namespace {

Result<std::unique_ptr<CudaGemmOperation>> make(OpKind kind, const GemmShape& shape, Topology topology,
                                                std::uint32_t rank, const GemmPlanOptions& plan) {
  if (kind == OpKind::kAgGemm) {
    return make_cuda_ag_gemm(shape, std::move(topology), rank,
                             {.comm_ctas = plan.comm_ctas,
                              .sms = plan.sms,
                              .nic_gbytes = plan.nic_gbytes,
                              .machine = plan.machine});
  }
  const TileReduceOptions reduce{.reduce_ctas = plan.comm_ctas, .sms = plan.sms, .machine = plan.machine};
  return kind == OpKind::kGemmRs ? make_cuda_gemm_rs(shape, std::move(topology), rank, reduce)
                                 : make_cuda_gemm_ar(shape, std::move(topology), rank, reduce);
}

}  // namespace

Result<std::unique_ptr<GemmOperation>> make_gemm_on_gpu(OpKind kind, const GemmShape& shape,
                                                        const GroupView& group, Topology topology,
                                                        const MakeOptions& options) {
  MK_RETURN_IF_ERROR(check_kernel_type(name_of(kind), shape.dtype));
  const OnDevice here(options.device);
  MK_RETURN_IF_ERROR(here.status());
  auto made = make(kind, shape, std::move(topology), group.rank(), options.plan);
  if (!made.ok()) return made.status();
  (*made)->use_rings(options.rings);
  (*made)->tell_overrides(options.plan);
  return std::unique_ptr<GemmOperation>(std::move(*made));
}

Result<std::unique_ptr<MoeOperation>> make_moe_on_gpu(const MoeShape& shape, const GroupView& group,
                                                      const Topology& topology, const MakeOptions& options) {
  MK_RETURN_IF_ERROR(check_kernel_type(name_of(OpKind::kMoeDispatchGemm), shape.dtype));
  const OnDevice here(options.device);
  MK_RETURN_IF_ERROR(here.status());
  const GemmPlanOptions& plan = options.plan;
  auto made = make_cuda_moe(shape, topology, group.rank(),
                            {.dispatch_ctas = plan.comm_ctas, .sms = plan.sms, .machine = plan.machine});
  if (!made.ok()) return made.status();
  (*made)->use_rings(options.rings);
  return std::unique_ptr<MoeOperation>(std::move(*made));
}

Result<std::unique_ptr<GroupedGemmOperation>> make_grouped_gemm_on_gpu(const GroupedGemmShape& shape,
                                                                       const GroupView& group,
                                                                       const Topology& topology,
                                                                       const MakeOptions& options) {
  MK_RETURN_IF_ERROR(check_kernel_type(name_of(OpKind::kGroupedGemm), shape.dtype));
  const OnDevice here(options.device);
  MK_RETURN_IF_ERROR(here.status());
  auto made = make_cuda_grouped_gemm(shape, topology, group.rank(),
                                     {.sms = options.plan.sms, .machine = options.plan.machine});
  if (!made.ok()) return made.status();
  return std::unique_ptr<GroupedGemmOperation>(std::move(*made));
}

Result<std::unique_ptr<AttentionOperation>> make_attention_on_gpu(OpKind kind, const AttentionShape& shape,
                                                                  const GroupView& group,
                                                                  const Topology& topology,
                                                                  const MakeOptions& options) {
  MK_RETURN_IF_ERROR(check_kernel_type(name_of(kind), shape.dtype));
  const OnDevice here(options.device);
  MK_RETURN_IF_ERROR(here.status());
  const GemmPlanOptions& plan = options.plan;
  auto made =
      kind == OpKind::kAttention
          ? make_cuda_attention(shape, topology, group.rank(), {.sms = plan.sms, .machine = plan.machine})
          : make_cuda_ring_attention(shape, topology, group.rank(),
                                     {.comm_ctas = plan.comm_ctas, .sms = plan.sms, .machine = plan.machine});
  if (!made.ok()) return made.status();
  (*made)->use_rings(options.rings);
  return std::unique_ptr<AttentionOperation>(std::move(*made));
}

Result<std::unique_ptr<AttentionBackwardOperation>> make_attention_backward_on_gpu(
    OpKind kind, const AttentionShape& shape, const GroupView& group, const Topology& topology,
    const MakeOptions& options) {
  MK_RETURN_IF_ERROR(check_kernel_type(name_of(kind), shape.dtype));
  const OnDevice here(options.device);
  MK_RETURN_IF_ERROR(here.status());
  const GemmPlanOptions& plan = options.plan;
  auto made = kind == OpKind::kAttentionBackward
                  ? make_cuda_attention_backward(shape, topology, group.rank(),
                                                 {.sms = plan.sms, .machine = plan.machine})
                  : make_cuda_ring_attention_backward(
                        shape, topology, group.rank(),
                        {.comm_ctas = plan.comm_ctas, .sms = plan.sms, .machine = plan.machine});
  if (!made.ok()) return made.status();
  (*made)->use_rings(options.rings);
  return std::unique_ptr<AttentionBackwardOperation>(std::move(*made));
}

}  // namespace mkernel::kernels

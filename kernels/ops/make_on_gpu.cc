// The cuda executor's part of making an operation.
#include <utility>

#include "kernels/cuda/launch/gemm_operation.h"
#include "kernels/cuda/memory/kernel_types.h"
#include "kernels/cuda/memory/on_device.h"
#include "kernels/ops/make.h"

namespace mkernel::kernels {
namespace {

/// What `make_cuda` returns with the plan options, made on `options.device`.
template <class Made, class MakeCuda>
Result<std::unique_ptr<Made>> make(OpKind kind, DataType dtype, const MakeOptions& options,
                                   const MakeCuda& make_cuda) {
  MK_RETURN_IF_ERROR(check_kernel_type(name_of(kind), dtype));
  const OnDevice here(options.device);
  MK_RETURN_IF_ERROR(here.status());
  auto made = make_cuda(options.plan);
  if (!made.ok()) return made.status();
  (*made)->use_rings(options.rings);
  return std::unique_ptr<Made>(std::move(*made));
}

/// For operations of each rank alone.
AttentionOptions alone(const GemmPlanOptions& plan) {
  return {.sms = plan.sms, .machine = plan.machine};
}

RingAttentionOptions ring(const GemmPlanOptions& plan) {
  return {.comm_ctas = plan.comm_ctas, .sms = plan.sms, .machine = plan.machine};
}

Result<std::unique_ptr<CudaGemmOperation>> make_cuda_gemm(OpKind kind, const GemmShape& shape,
                                                          const Topology& topology, std::uint32_t rank,
                                                          const GemmPlanOptions& plan) {
  const TileReduceOptions reduce{.reduce_ctas = plan.comm_ctas,
                                 .link_gbytes = plan.link_gbytes,
                                 .sms = plan.sms,
                                 .machine = plan.machine};
  if (kind == OpKind::kGemmRs) return make_cuda_gemm_rs(shape, topology, rank, reduce);
  if (kind == OpKind::kGemmAr) return make_cuda_gemm_ar(shape, topology, rank, reduce);
  return make_cuda_ag_gemm(shape, topology, rank,
                           {.comm_ctas = plan.comm_ctas,
                            .sms = plan.sms,
                            .nic_gbytes = plan.nic_gbytes,
                            .link_gbytes = plan.link_gbytes,
                            .machine = plan.machine});
}

}  // namespace

Result<std::unique_ptr<GemmOperation>> make_gemm_on_gpu(OpKind kind, const GemmShape& shape,
                                                        const Topology& topology, std::uint32_t rank,
                                                        const MakeOptions& options) {
  return make<GemmOperation>(kind, shape.dtype, options, [&](const GemmPlanOptions& plan) {
    auto made = make_cuda_gemm(kind, shape, topology, rank, plan);
    if (made.ok()) (*made)->tell_overrides(plan);
    return made;
  });
}

Result<std::unique_ptr<MoeOperation>> make_moe_on_gpu(const MoeShape& shape, const Topology& topology,
                                                      std::uint32_t rank, const MakeOptions& options) {
  return make<MoeOperation>(OpKind::kMoeDispatchGemm, shape.dtype, options, [&](const GemmPlanOptions& plan) {
    return make_cuda_moe(shape, topology, rank,
                         {.dispatch_ctas = plan.comm_ctas, .sms = plan.sms, .machine = plan.machine});
  });
}

Result<std::unique_ptr<GroupedGemmOperation>> make_grouped_gemm_on_gpu(const GroupedGemmShape& shape,
                                                                       const Topology& topology,
                                                                       std::uint32_t rank,
                                                                       const MakeOptions& options) {
  return make<GroupedGemmOperation>(
      OpKind::kGroupedGemm, shape.dtype, options, [&](const GemmPlanOptions& plan) {
        return make_cuda_grouped_gemm(shape, topology, rank, {.sms = plan.sms, .machine = plan.machine});
      });
}

Result<std::unique_ptr<AttentionOperation>> make_attention_on_gpu(OpKind kind, const AttentionShape& shape,
                                                                  const Topology& topology,
                                                                  std::uint32_t rank,
                                                                  const MakeOptions& options) {
  return make<AttentionOperation>(kind, shape.dtype, options, [&](const GemmPlanOptions& plan) {
    return kind == OpKind::kAttention ? make_cuda_attention(shape, topology, rank, alone(plan))
                                      : make_cuda_ring_attention(shape, topology, rank, ring(plan));
  });
}

Result<std::unique_ptr<AttentionBackwardOperation>> make_attention_backward_on_gpu(
    OpKind kind, const AttentionShape& shape, const Topology& topology, std::uint32_t rank,
    const MakeOptions& options) {
  return make<AttentionBackwardOperation>(kind, shape.dtype, options, [&](const GemmPlanOptions& plan) {
    return kind == OpKind::kAttentionBackward
               ? make_cuda_attention_backward(shape, topology, rank, alone(plan))
               : make_cuda_ring_attention_backward(shape, topology, rank, ring(plan));
  });
}

}  // namespace mkernel::kernels

// Makes the operations, on either executor.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/base/views.h"
#include "kernels/ops/ag_gemm/plan.h"
#include "kernels/ops/grouped_gemm/plan.h"
#include "kernels/ops/moe_dispatch_gemm/plan.h"
#include "kernels/ops/ring_attention/attention/plan.h"
#include "kernels/ops/ring_attention/gpu_plan.h"
#include "kernels/plan/tile_reduce_plan.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

class CudaGemmOperation;
template <class Arguments>
class CudaOperation;
using CudaMoeOperation = CudaOperation<MoeArguments>;
using CudaGroupedGemmOperation = CudaOperation<GroupedGemmArguments>;
using CudaAttentionOperation = CudaOperation<AttentionArguments>;
using CudaAttentionBackwardOperation = CudaOperation<AttentionBackwardArguments>;
class RingsOnDevice;

/// What runs an operation, and with what.
struct MakeOptions {
  Executor executor = Executor::kCpu;
  // cuda executor
  int device = -1;  ///< as CUDA counts the GPUs of this process
  std::shared_ptr<RingsOnDevice>
      rings;  ///< of the session, claimed on that GPU; null for a group on one node
  /// A grouped GEMM and attention of a rank alone, both ways, take only `sms` and `machine`, ring attention,
  /// both ways, also `comm_ctas`.
  GemmPlanOptions plan;
};

/// Plans an operation on this rank of `group`. Errors: kInvalidArgument naming field, value and limit (the
/// shape, `kind`, the executor, plan options on the cpu executor); kUnimplemented (the cuda executor does not
/// have the operation, or this build has no cuda executor); kUnavailable (no device). `kind`: kAgGemm,
/// kGemmRs or kGemmAr.
Result<std::unique_ptr<GemmOperation>> make_gemm(OpKind kind, const GemmShape& shape, const GroupView& group,
                                                 const MakeOptions& options = {});
Result<std::unique_ptr<MoeOperation>> make_moe(const MoeShape& shape, const GroupView& group,
                                               const MakeOptions& options = {});
/// `kind`: kRingAttention or kAttention.
Result<std::unique_ptr<AttentionOperation>> make_attention(OpKind kind, const AttentionShape& shape,
                                                           const GroupView& group,
                                                           const MakeOptions& options = {});
/// `kind`: kRingAttentionBackward or kAttentionBackward.
Result<std::unique_ptr<AttentionBackwardOperation>> make_attention_backward(OpKind kind,
                                                                            const AttentionShape& shape,
                                                                            const GroupView& group,
                                                                            const MakeOptions& options = {});
Result<std::unique_ptr<GroupedGemmOperation>> make_grouped_gemm(const GroupedGemmShape& shape,
                                                                const GroupView& group,
                                                                const MakeOptions& options = {});

// One maker per operation and executor, each in the operation's folder. Tests call them to override more of a
// plan.

Result<std::unique_ptr<GemmOperation>> make_cpu_ag_gemm(const GemmShape& shape, Topology topology,
                                                        std::uint32_t rank, AgGemmOptions options = {});
Result<std::unique_ptr<GemmOperation>> make_cpu_gemm_rs(const GemmShape& shape, Topology topology,
                                                        std::uint32_t rank,
                                                        const TileReduceOptions& options = {});
Result<std::unique_ptr<GemmOperation>> make_cpu_gemm_ar(const GemmShape& shape, Topology topology,
                                                        std::uint32_t rank,
                                                        const TileReduceOptions& options = {});
Result<std::unique_ptr<MoeOperation>> make_cpu_moe(const MoeShape& shape, const Topology& topology,
                                                   const MoeOptions& options = {});
Result<std::unique_ptr<AttentionOperation>> make_cpu_ring_attention(const AttentionShape& shape,
                                                                    const Topology& topology,
                                                                    std::uint32_t rank);
Result<std::unique_ptr<AttentionOperation>> make_cpu_attention(const AttentionShape& shape,
                                                               const Topology& topology);
Result<std::unique_ptr<AttentionBackwardOperation>> make_cpu_attention_backward(const AttentionShape& shape,
                                                                                const Topology& topology);
Result<std::unique_ptr<AttentionBackwardOperation>> make_cpu_ring_attention_backward(
    const AttentionShape& shape, const Topology& topology, std::uint32_t rank);
Result<std::unique_ptr<GroupedGemmOperation>> make_cpu_grouped_gemm(const GroupedGemmShape& shape,
                                                                    const Topology& topology);

/// For the current device. Errors: the plan's make(); kUnavailable without a device; kUnimplemented on one
/// that is not of compute capability 9.0.
Result<std::unique_ptr<CudaGemmOperation>> make_cuda_ag_gemm(const GemmShape& shape, Topology topology,
                                                             std::uint32_t rank,
                                                             const AgGemmOptions& options = {});
Result<std::unique_ptr<CudaGemmOperation>> make_cuda_gemm_rs(const GemmShape& shape, Topology topology,
                                                             std::uint32_t rank,
                                                             const TileReduceOptions& options = {});
Result<std::unique_ptr<CudaGemmOperation>> make_cuda_gemm_ar(const GemmShape& shape, Topology topology,
                                                             std::uint32_t rank,
                                                             const TileReduceOptions& options = {});
Result<std::unique_ptr<CudaMoeOperation>> make_cuda_moe(const MoeShape& shape, const Topology& topology,
                                                        std::uint32_t rank, const MoeOptions& options = {});
Result<std::unique_ptr<CudaGroupedGemmOperation>> make_cuda_grouped_gemm(
    const GroupedGemmShape& shape, const Topology& topology, std::uint32_t rank,
    const GroupedGemmOptions& options = {});
Result<std::unique_ptr<CudaAttentionOperation>> make_cuda_attention(const AttentionShape& shape,
                                                                    const Topology& topology,
                                                                    std::uint32_t rank,
                                                                    const AttentionOptions& options = {});
Result<std::unique_ptr<CudaAttentionBackwardOperation>> make_cuda_attention_backward(
    const AttentionShape& shape, const Topology& topology, std::uint32_t rank,
    const AttentionOptions& options = {});
Result<std::unique_ptr<CudaAttentionOperation>> make_cuda_ring_attention(
    const AttentionShape& shape, const Topology& topology, std::uint32_t rank,
    const RingAttentionOptions& options = {});
Result<std::unique_ptr<CudaAttentionBackwardOperation>> make_cuda_ring_attention_backward(
    const AttentionShape& shape, const Topology& topology, std::uint32_t rank,
    const RingAttentionOptions& options = {});

/// The cuda executor's part of the first five functions: one of these on `options.device`.
Result<std::unique_ptr<GemmOperation>> make_gemm_on_gpu(OpKind kind, const GemmShape& shape,
                                                        const Topology& topology, std::uint32_t rank,
                                                        const MakeOptions& options);
Result<std::unique_ptr<MoeOperation>> make_moe_on_gpu(const MoeShape& shape, const Topology& topology,
                                                      std::uint32_t rank, const MakeOptions& options);
Result<std::unique_ptr<GroupedGemmOperation>> make_grouped_gemm_on_gpu(const GroupedGemmShape& shape,
                                                                       const Topology& topology,
                                                                       std::uint32_t rank,
                                                                       const MakeOptions& options);
Result<std::unique_ptr<AttentionOperation>> make_attention_on_gpu(OpKind kind, const AttentionShape& shape,
                                                                  const Topology& topology,
                                                                  std::uint32_t rank,
                                                                  const MakeOptions& options);
Result<std::unique_ptr<AttentionBackwardOperation>> make_attention_backward_on_gpu(
    OpKind kind, const AttentionShape& shape, const Topology& topology, std::uint32_t rank,
    const MakeOptions& options);

}  // namespace mkernel::kernels

// Attention of sequences of different lengths, and with a sliding window, on the cuda executor: the host's
// side of a launch.
#include "kernels/ops/ring_attention/attention/varlen_cuda.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/launch/operation.h"
#include "kernels/ops/ring_attention/attention/varlen_kernel.h"
#include "kernels/ops/ring_attention/attention/varlen_parameters.h"
#include "kernels/ops/ring_attention/cuda_operands.h"
#include "kernels/ops/ring_attention/estimate.h"
#include "kernels/ops/ring_attention/varlen_operation.h"
#include "kernels/ops/ring_attention/with_config.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

// What a kernel may be given by value on every driver.
static_assert(sizeof(VarlenParameters) <= 4096);

constexpr OpKind kKind = OpKind::kAttention;

class CudaVarlenAttention final
    : public CudaVarlenOperation<CudaOperation<AttentionArguments>, AttentionSlot> {
 public:
  CudaVarlenAttention(AttentionPlan plan, const Machine& machine, const Topology& topology,
                      std::uint32_t rank)
      : CudaVarlenOperation(kKind, name_of(kKind), topology, rank),
        plan_(std::move(plan)),
        ctas_(machine.sms),
        expected_seconds_(estimated_seconds(plan_, machine)) {}

  std::string signature() const override { return plan_.signature() + " cuda " + machine(); }
  Requirements requirements() const override { return {.gpu = true}; }
  double expected_seconds() const override { return expected_seconds_; }

 private:
  Status attach() override {
    MK_RETURN_IF_ERROR(allocate_list(ctas_, plan_.lengths({}).sequences));
    parameters_ = varlen_parameters(plan_, scratch());
    return {};
  }

  Status check(const AttentionArguments& arguments) const override {
    MK_RETURN_IF_ERROR(plan_.check(arguments));
    return check_attention_addresses(kKind, arguments);
  }

  Status launch(const AttentionArguments& arguments, std::uint64_t deadline_ns,
                CUstream_st* stream) override {
    const AttentionViews views{varlen_q_view(plan_, arguments.q), varlen_kv_view(plan_, arguments.k),
                               varlen_kv_view(plan_, arguments.v), varlen_out_view(plan_, arguments.out)};
    MK_RETURN_IF_ERROR(maps_.encode(arguments, views, parameters_));
    VarlenParameters p = parameters_;
    p.endpoint = endpoint(deadline_ns);
    p.lengths = plan_.lengths(arguments);
    p.lse = arguments.lse;
    return queue(&p, ctas_, stream);
  }

  Status refuse(const BadLength& why) const override { return plan_.refuse(why); }

  const AttentionPlan plan_;
  const std::int32_t ctas_;
  const double expected_seconds_;
  VarlenParameters parameters_{};  ///< without the operands of a launch
  AttentionMaps maps_;
};

}  // namespace

Result<std::unique_ptr<CudaAttentionOperation>> make_cuda_varlen_attention(AttentionPlan plan,
                                                                           const Topology& topology,
                                                                           std::uint32_t rank,
                                                                           const Machine& machine) {
  const CooperativeKernel kernel =
      with_attention_tile(plan.shape, plan.tile_keys(), []<int kHeadDim, int kTileKeys, DataType kType>() {
        return varlen_kernel_of<kHeadDim, kTileKeys, kType>();
      });
  std::unique_ptr<CudaAttentionOperation> made =
      std::make_unique<CudaVarlenAttention>(std::move(plan), machine, topology, rank);
  MK_RETURN_IF_ERROR(made->load(kernel, machine));
  return made;
}

}  // namespace mkernel::kernels

// The backward pass of attention of sequences of different lengths on the cuda executor: the host's side of a
// launch.
#include "kernels/ops/ring_attention/attention_backward/varlen_cuda.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/ops/ring_attention/attention_backward/varlen_kernel.h"
#include "kernels/ops/ring_attention/attention_backward/varlen_parameters.h"
#include "kernels/ops/ring_attention/cuda_operands.h"
#include "kernels/ops/ring_attention/estimate.h"
#include "kernels/ops/ring_attention/with_config.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

// What a kernel may be given by value on every driver.
static_assert(sizeof(VarlenBackwardParameters) <= 4096);

constexpr OpKind kKind = OpKind::kAttentionBackward;

class CudaVarlenAttentionBackward final : public CudaOperation<AttentionBackwardArguments> {
 public:
  CudaVarlenAttentionBackward(AttentionBackwardPlan plan, const Machine& machine, const Topology& topology,
                              std::uint32_t rank)
      : CudaOperation(kKind, name_of(kKind), topology, rank),
        plan_(std::move(plan)),
        ctas_(machine.sms),
        expected_seconds_(estimated_seconds(plan_, machine)) {}

  std::string signature() const override { return plan_.signature() + " cuda " + machine(); }
  Requirements requirements() const override { return {.gpu = true}; }
  double expected_seconds() const override { return expected_seconds_; }

 private:
  using Scratch = VarlenScratch<AttentionBackwardSlot>;

  Status attach() override {
    auto memory = DeviceBuffer::zeroed(static_cast<std::uint64_t>(varlen_backward_bytes(plan_)),
                                       "attention_backward: sums of the gradients of queries");
    if (!memory.ok()) return memory.status();
    memory_ = std::move(*memory);
    auto scratch = DeviceBuffer::zeroed(Scratch::bytes(ctas_, plan_.lengths({}).sequences),
                                        "attention_backward: list of tasks");
    if (!scratch.ok()) return scratch.status();
    scratch_ = std::move(*scratch);
    parameters_ = varlen_backward_parameters(plan_, memory_.get(), static_cast<Scratch*>(scratch_.get()));
    parameters_.preparing = ctas_;
    return encode_packed_attention_map(kKind, backward_rows_view(parameters_), "rows", parameters_.row_map);
  }

  Status check(const AttentionBackwardArguments& arguments) const override {
    MK_RETURN_IF_ERROR(plan_.check(arguments));
    return check_attention_backward_addresses(kKind, arguments);
  }

  Status launch(const AttentionBackwardArguments& arguments, std::uint64_t deadline_ns,
                CUstream_st* stream) override {
    const AttentionBackwardViews views{
        varlen_backward_q_view(plan_, arguments.q),     varlen_backward_k_view(plan_, arguments.k),
        varlen_backward_k_view(plan_, arguments.v),     varlen_backward_q_view(plan_, arguments.d_out),
        varlen_backward_d_k_view(plan_, arguments.d_k), varlen_backward_d_k_view(plan_, arguments.d_v)};
    MK_RETURN_IF_ERROR(maps_.encode(arguments, views, parameters_));
    VarlenBackwardParameters p = parameters_;
    p.endpoint = endpoint(deadline_ns);
    p.lengths = plan_.lengths(arguments);
    p.out = arguments.out;
    p.d_out_rows = arguments.d_out;
    p.lse = arguments.lse;
    p.d_q = arguments.d_q;
    p.d_rows[0] = arguments.d_k;
    p.d_rows[1] = arguments.d_v;
    return queue(&p, ctas_, stream);
  }

  Result<LaunchRefusal> last_refusal() override {
    VarlenRefusal last;
    MK_RETURN_IF_ERROR(read(&parameters_.scratch->refusal, last));
    return LaunchRefusal{last.launch, plan_.refuse(last.why)};
  }

  const AttentionBackwardPlan plan_;
  const std::int32_t ctas_;
  const double expected_seconds_;
  DeviceBuffer memory_, scratch_;
  VarlenBackwardParameters parameters_{};  ///< without the operands of a launch
  AttentionBackwardMaps maps_;
};

}  // namespace

Result<std::unique_ptr<CudaAttentionBackwardOperation>> make_cuda_varlen_attention_backward(
    AttentionBackwardPlan plan, const Topology& topology, std::uint32_t rank, const Machine& machine) {
  const CooperativeKernel kernel =
      with_attention_config(plan.shape, []<int kHeadDim, bool kCausal, DataType kType>() {
        return varlen_backward_kernel_of<kHeadDim, kCausal, kType>();
      });
  std::unique_ptr<CudaAttentionBackwardOperation> made =
      std::make_unique<CudaVarlenAttentionBackward>(std::move(plan), machine, topology, rank);
  MK_RETURN_IF_ERROR(made->load(kernel, machine));
  return made;
}

}  // namespace mkernel::kernels

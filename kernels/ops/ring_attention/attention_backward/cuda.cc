// The backward pass of attention of a rank alone on the cuda executor: the host's side of a launch.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/cuda/memory/hopper.h"
#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/attention_backward/kernel.h"
#include "kernels/ops/ring_attention/attention_backward/parameters.h"
#include "kernels/ops/ring_attention/attention_backward/plan.h"
#include "kernels/ops/ring_attention/attention_backward/varlen_cuda.h"
#include "kernels/ops/ring_attention/cuda_operands.h"
#include "kernels/ops/ring_attention/estimate.h"
#include "kernels/ops/ring_attention/with_config.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

// What a kernel may be given by value on every driver.
static_assert(sizeof(AttentionBackwardParameters) <= 4096);

constexpr OpKind kKind = OpKind::kAttentionBackward;

class CudaAttentionBackward final : public CudaOperation<AttentionBackwardArguments> {
 public:
  CudaAttentionBackward(AttentionBackwardPlan plan, const Machine& machine, const Topology& topology,
                        std::uint32_t rank, bool later_keys_upwards)
      : CudaOperation(kKind, name_of(kKind), topology, rank),
        plan_(std::move(plan)),
        sms_(machine.sms),
        later_keys_upwards_(later_keys_upwards),
        expected_seconds_(estimated_seconds(plan_, machine)) {}

  std::string signature() const override { return plan_.signature() + " cuda " + machine(); }
  Requirements requirements() const override { return {.gpu = true}; }
  double expected_seconds() const override { return expected_seconds_; }

 private:
  Status attach() override {
    auto memory = DeviceBuffer::zeroed(
        static_cast<std::uint64_t>(
            attention_backward_scratch(plan_.shape, attention_backward_parts(plan_)).bytes),
        "attention_backward: sums of the gradients of queries");
    if (!memory.ok()) return memory.status();
    memory_ = std::move(*memory);
    parameters_ = attention_backward_parameters(plan_, memory_.get());
    if (later_keys_upwards_) parameters_.tasks = plan_.tasks(sms_);
    return encode_packed_attention_map(kKind, backward_rows_view(parameters_), "rows", parameters_.row_map);
  }

  Status check(const AttentionBackwardArguments& arguments) const override {
    MK_RETURN_IF_ERROR(plan_.check(arguments));
    return check_attention_backward_addresses(kKind, arguments);
  }

  Status launch(const AttentionBackwardArguments& arguments, std::uint64_t deadline_ns,
                CUstream_st* stream) override {
    const AttentionBackwardViews views{
        attention_backward_q_view(plan_, arguments.q),     attention_backward_k_view(plan_, arguments.k),
        attention_backward_k_view(plan_, arguments.v),     attention_backward_q_view(plan_, arguments.d_out),
        attention_backward_d_k_view(plan_, arguments.d_k), attention_backward_d_k_view(plan_, arguments.d_v)};
    MK_RETURN_IF_ERROR(maps_.encode(arguments, views, parameters_));
    AttentionBackwardParameters p = parameters_;
    p.endpoint = endpoint(deadline_ns);
    p.out = arguments.out;
    p.d_out_rows = arguments.d_out;
    p.lse = arguments.lse;
    p.d_q = arguments.d_q;
    p.preparing = std::min(sms_, std::max(p.tasks.tasks(), p.all_heads));
    return queue(&p, p.preparing, stream);
  }

  const AttentionBackwardPlan plan_;
  const std::int32_t sms_;
  const bool later_keys_upwards_;
  const double expected_seconds_;
  DeviceBuffer memory_;
  AttentionBackwardParameters parameters_{};  ///< without the operands of a launch
  AttentionBackwardMaps maps_;
};

}  // namespace

Result<std::unique_ptr<CudaAttentionBackwardOperation>> make_cuda_attention_backward(
    const AttentionShape& shape, const Topology& topology, std::uint32_t rank,
    const AttentionOptions& options) {
  auto plan = AttentionBackwardPlan::make(shape);
  if (!plan.ok()) return plan.status();
  MK_RETURN_IF_ERROR(plan->check_on_gpu());
  auto machine = hopper_machine(name_of(kKind), options.machine, options.sms);
  if (!machine.ok()) return machine.status();
  if (shape.max_sequences > 0)
    return make_cuda_varlen_attention_backward(std::move(*plan), topology, rank, *machine);
  const CooperativeKernel kernel =
      with_attention_config(shape, []<int kHeadDim, bool kCausal, DataType kType>() {
        return attention_backward_kernel_of<kHeadDim, kCausal, kType>();
      });
  std::unique_ptr<CudaAttentionBackwardOperation> made = std::make_unique<CudaAttentionBackward>(
      std::move(*plan), *machine, topology, rank, options.later_keys_upwards);
  MK_RETURN_IF_ERROR(made->load(kernel, *machine));
  return made;
}

}  // namespace mkernel::kernels

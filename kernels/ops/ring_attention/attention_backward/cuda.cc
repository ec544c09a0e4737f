// The backward pass of attention of a rank alone on the cuda executor: the host's side of a launch.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/cuda/memory/hopper.h"
#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/attention_backward/alone_cuda.h"
#include "kernels/ops/ring_attention/attention_backward/kernel.h"
#include "kernels/ops/ring_attention/attention_backward/parameters.h"
#include "kernels/ops/ring_attention/attention_backward/plan.h"
#include "kernels/ops/ring_attention/attention_backward/varlen_cuda.h"
#include "kernels/ops/ring_attention/with_config.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

// What a kernel may be given by value on every driver.
static_assert(sizeof(AttentionBackwardParameters) <= 4096);

constexpr OpKind kKind = OpKind::kAttentionBackward;

class CudaAttentionBackward final : public CudaAloneBackward<AttentionBackwardParameters> {
 public:
  CudaAttentionBackward(AttentionBackwardPlan plan, const Machine& machine, const Topology& topology,
                        std::uint32_t rank, bool later_keys_upwards)
      : CudaAloneBackward(std::move(plan), machine, topology, rank),
        later_keys_upwards_(later_keys_upwards) {}

 private:
  Status attach() override {
    const AttentionBackwardScratch scratch =
        attention_backward_scratch(plan().shape, attention_backward_parts(plan()));
    return allocate_sums(scratch.bytes, [this](void* memory) {
      AttentionBackwardParameters p = attention_backward_parameters(plan(), memory);
      if (later_keys_upwards_) p.tasks = plan().tasks(sms());
      return p;
    });
  }

  Status launch(const AttentionBackwardArguments& arguments, std::uint64_t deadline_ns,
                CUstream_st* stream) override {
    const AttentionBackwardViews views{attention_backward_q_view(plan(), arguments.q),
                                       attention_backward_k_view(plan(), arguments.k),
                                       attention_backward_k_view(plan(), arguments.v),
                                       attention_backward_q_view(plan(), arguments.d_out),
                                       attention_backward_d_k_view(plan(), arguments.d_k),
                                       attention_backward_d_k_view(plan(), arguments.d_v)};
    AttentionBackwardParameters p{};
    MK_RETURN_IF_ERROR(describe(arguments, views, deadline_ns, p));
    p.preparing = std::min(sms(), std::max(p.tasks.tasks(), p.all_heads));
    return queue(&p, p.preparing, stream);
  }

  const bool later_keys_upwards_;
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
  if (!plan->plain()) return make_cuda_varlen_attention_backward(std::move(*plan), topology, rank, *machine);
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

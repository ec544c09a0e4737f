// The backward pass of attention of sequences of different lengths, and with a sliding window, on the cuda
// executor: the host's side of a launch.
#include "kernels/ops/ring_attention/attention_backward/varlen_cuda.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/ops/ring_attention/attention_backward/alone_cuda.h"
#include "kernels/ops/ring_attention/attention_backward/varlen_kernel.h"
#include "kernels/ops/ring_attention/attention_backward/varlen_parameters.h"
#include "kernels/ops/ring_attention/varlen_operation.h"
#include "kernels/ops/ring_attention/with_config.h"

namespace mkernel::kernels {
namespace {

// What a kernel may be given by value on every driver.
static_assert(sizeof(VarlenBackwardParameters) <= 4096);

class CudaVarlenAttentionBackward final
    : public CudaVarlenOperation<CudaAloneBackward<VarlenBackwardParameters>, AttentionBackwardSlot> {
 public:
  CudaVarlenAttentionBackward(AttentionBackwardPlan plan, const Machine& machine, const Topology& topology,
                              std::uint32_t rank)
      : CudaVarlenOperation(std::move(plan), machine, topology, rank) {}

 private:
  Status attach() override {
    MK_RETURN_IF_ERROR(allocate_list(sms(), plan().lengths({}).sequences));
    return allocate_sums(varlen_backward_bytes(plan()), [this](void* memory) {
      VarlenBackwardParameters p = varlen_backward_parameters(plan(), memory, scratch());
      p.preparing = sms();
      return p;
    });
  }

  Status launch(const AttentionBackwardArguments& arguments, std::uint64_t deadline_ns,
                CUstream_st* stream) override {
    const AttentionBackwardViews views{
        varlen_backward_q_view(plan(), arguments.q),     varlen_backward_k_view(plan(), arguments.k),
        varlen_backward_k_view(plan(), arguments.v),     varlen_backward_q_view(plan(), arguments.d_out),
        varlen_backward_d_k_view(plan(), arguments.d_k), varlen_backward_d_k_view(plan(), arguments.d_v)};
    VarlenBackwardParameters p{};
    MK_RETURN_IF_ERROR(describe(arguments, views, deadline_ns, p));
    p.lengths = plan().lengths(arguments);
    p.d_rows[0] = arguments.d_k;
    p.d_rows[1] = arguments.d_v;
    return queue(&p, sms(), stream);
  }

  Status refuse(const BadLength& why) const override { return plan().refuse(why); }
};

}  // namespace

Result<std::unique_ptr<CudaAttentionBackwardOperation>> make_cuda_varlen_attention_backward(
    AttentionBackwardPlan plan, const Topology& topology, std::uint32_t rank, const Machine& machine) {
  const CooperativeKernel kernel =
      has_attention_window(plan.shape)
          ? with_attention_heads(
                plan.shape,
                []<int kHeadDim, DataType kType>() { return window_backward_kernel_of<kHeadDim, kType>(); })
          : with_attention_config(plan.shape, []<int kHeadDim, bool kCausal, DataType kType>() {
              return varlen_backward_kernel_of<kHeadDim, kCausal, kType>();
            });
  std::unique_ptr<CudaAttentionBackwardOperation> made =
      std::make_unique<CudaVarlenAttentionBackward>(std::move(plan), machine, topology, rank);
  MK_RETURN_IF_ERROR(made->load(kernel, machine));
  return made;
}

}  // namespace mkernel::kernels

// Attention of a rank alone on the cuda executor: the host's side of a launch.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/cuda/memory/hopper.h"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/attention_kernel.h"
#include "kernels/ops/ring_attention/attention_parameters.h"
#include "kernels/ops/ring_attention/attention_plan.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

// What a kernel may be given by value on every driver.
static_assert(sizeof(AttentionParameters) <= 4096);

constexpr OpKind kKind = OpKind::kAttention;

template <int kHeadDim, bool kCausal>
CooperativeKernel kernel_of_type(DataType type) {
  return type == DataType::kBf16 ? attention_kernel_of<kHeadDim, kCausal, DataType::kBf16>()
                                 : attention_kernel_of<kHeadDim, kCausal, DataType::kF16>();
}

CooperativeKernel kernel_of(const AttentionShape& shape) {
  if (shape.head_dim == 64)
    return shape.causal ? kernel_of_type<64, true>(shape.dtype) : kernel_of_type<64, false>(shape.dtype);
  return shape.causal ? kernel_of_type<128, true>(shape.dtype) : kernel_of_type<128, false>(shape.dtype);
}

class CudaAttention final : public CudaOperation<AttentionArguments> {
 public:
  CudaAttention(AttentionPlan plan, std::int32_t sms, const Topology& topology, std::uint32_t rank)
      : CudaOperation(kKind, name_of(kKind), topology, rank), plan_(std::move(plan)), sms_(sms) {}

  std::string signature() const override { return plan_.signature() + " cuda " + machine(); }
  Requirements requirements() const override { return {.gpu = true}; }

 private:
  Status attach() override {
    auto counters = DeviceBuffer::zeroed(sizeof(AttentionCounters), "attention: counters");
    if (!counters.ok()) return counters.status();
    counters_ = std::move(*counters);
    parameters_ = attention_parameters(plan_, static_cast<AttentionCounters*>(counters_.get()));
    return {};
  }

  static Status encode(const MatrixView& view, const char* name, TensorMap& map) {
    auto made = encode_tensor_map(view, name);
    if (made.ok()) map = *made;
    return made.status().with_context(name_of(kKind));
  }

  /// The maps stay until a launch comes with other tensors.
  Status encode_tensors(const AttentionArguments& arguments) {
    const Tensors given{arguments.q, arguments.k, arguments.v, arguments.out};
    if (given == tensors_) return {};
    tensors_ = {};
    MK_RETURN_IF_ERROR(encode(attention_q_view(plan_, arguments.q), "q", parameters_.q));
    MK_RETURN_IF_ERROR(encode(attention_kv_view(plan_, arguments.k), "k", parameters_.k));
    MK_RETURN_IF_ERROR(encode(attention_kv_view(plan_, arguments.v), "v", parameters_.v));
    MK_RETURN_IF_ERROR(encode(attention_out_view(plan_, arguments.out), "out", parameters_.out));
    tensors_ = given;
    return {};
  }

  Status check(const AttentionArguments& arguments) const override {
    MK_RETURN_IF_ERROR(plan_.check(arguments));
    for (const auto& [data, name] : {std::pair{arguments.q, "q"},
                                     {arguments.k, "k"},
                                     {arguments.v, "v"},
                                     {static_cast<const void*>(arguments.out), "out"}})
      MK_RETURN_IF_ERROR(check_address(data, name).with_context(name_of(kKind)));
    return {};
  }

  Status launch(const AttentionArguments& arguments, std::uint64_t deadline_ns,
                CUstream_st* stream) override {
    MK_RETURN_IF_ERROR(encode_tensors(arguments));
    AttentionParameters p = parameters_;
    p.endpoint = endpoint(deadline_ns);
    p.lse = arguments.lse;
    return queue(&p, std::min(sms_, p.tasks.tasks()), stream);
  }

  using Tensors = std::tuple<const void*, const void*, const void*, const void*>;

  const AttentionPlan plan_;
  const std::int32_t sms_;
  DeviceBuffer counters_;
  AttentionParameters parameters_{};  ///< without the operands of a launch
  Tensors tensors_;                   ///< that the maps are of
};

}  // namespace

Result<std::unique_ptr<CudaAttentionOperation>> make_cuda_attention(const AttentionShape& shape,
                                                                    const Topology& topology,
                                                                    std::uint32_t rank,
                                                                    const AttentionOptions& options) {
  auto plan = AttentionPlan::make(shape);
  if (!plan.ok()) return plan.status();
  MK_RETURN_IF_ERROR(plan->check_on_gpu());
  auto machine = hopper_machine(name_of(kKind), options.machine, options.sms);
  if (!machine.ok()) return machine.status();
  const CooperativeKernel kernel = kernel_of(plan->shape);
  std::unique_ptr<CudaAttentionOperation> made =
      std::make_unique<CudaAttention>(std::move(*plan), machine->sms, topology, rank);
  MK_RETURN_IF_ERROR(made->load(kernel, *machine));
  return made;
}

}  // namespace mkernel::kernels

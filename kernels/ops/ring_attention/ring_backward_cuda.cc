// The backward pass of ring attention on the cuda executor: the host's side of a launch.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/cuda/memory/hopper.h"
#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/backward_plan.h"
#include "kernels/ops/ring_attention/cuda_operands.h"
#include "kernels/ops/ring_attention/estimate.h"
#include "kernels/ops/ring_attention/ring_backward_kernel.h"
#include "kernels/ops/ring_attention/ring_backward_parameters.h"
#include "kernels/ops/ring_attention/ring_backward_plan.h"
#include "kernels/ops/ring_attention/with_config.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

// What a kernel may be given by value on every driver.
static_assert(sizeof(RingBackwardParameters) <= 4096);

constexpr OpKind kKind = OpKind::kRingAttentionBackward;

class CudaRingBackward final : public CudaOperation<AttentionBackwardArguments> {
 public:
  CudaRingBackward(RingBackwardPlan plan, const Topology& topology, std::uint32_t rank)
      : CudaOperation(kKind, name_of(kKind), topology, rank), plan_(std::move(plan)) {}

  std::string signature() const override { return plan_.signature() + " cuda " + machine(); }
  Requirements requirements() const override {
    return {.workspace_bytes = plan_.partials.word_bytes(),
            .lent_bytes = plan_.partials.data_bytes(),
            .lanes = plan_.ring.lanes(),
            .gpu = true};
  }
  double expected_seconds() const override { return estimated_seconds(plan_); }
  std::uint64_t wire_bytes() const override { return plan_.ring.wire_bytes(); }

 private:
  /// All that stays as long as the workspaces do, the maps of every slab among it.
  Status attach() override {
    std::vector<TensorMap> maps;
    for (const std::uint64_t launch : {0, 1}) {
      const std::byte* half = lent().mine + lent_half_at(launch, half_bytes());
      for (std::int32_t i = 0; i < plan_.gather().world * KvGatherPlan::kTensors; ++i)
        MK_RETURN_IF_ERROR(encode_slab(half, i, maps.emplace_back()));
    }
    auto gathered = DeviceBuffer::holding(maps, "ring_attention_backward: tensor maps");
    if (!gathered.ok()) return gathered.status();
    gathered_ = std::move(*gathered);
    auto memory = DeviceBuffer::zeroed(static_cast<std::uint64_t>(ring_backward_scratch(plan_).bytes),
                                       "ring_attention_backward: sums of the gradients of queries");
    if (!memory.ok()) return memory.status();
    memory_ = std::move(*memory);
    parameters_ = ring_backward_parameters(plan_, memory_.get());
    MK_RETURN_IF_ERROR(
        encode_packed_attention_map(kKind, backward_rows_view(parameters_), "rows", parameters_.row_map));
    parameters_.gathered = static_cast<const TensorMap*>(gathered_.get());
    parameters_.half_bytes = half_bytes();
    parameters_.region = lent().region;
    describe_owners(topology(), rank(), parameters_);
    std::copy(workspace().node.begin(), workspace().node.end(), parameters_.words);
    std::copy(lent().node.begin(), lent().node.end(), parameters_.lent);
    return {};
  }

  static Status encode(const MatrixView& view, const char* name, TensorMap& map) {
    return encode_attention_map(kKind, view, name, map);
  }

  /// Of source and tensor number `index`, unless the source holds nothing: the kernel keeps clear of that
  /// one.
  Status encode_slab(const std::byte* half, std::int32_t index, TensorMap& map) const {
    const std::int32_t source = index / KvGatherPlan::kTensors, tensor = index % KvGatherPlan::kTensors;
    map = {};
    if (plan_.gather().positions(source) == 0) return {};
    const std::byte* slab = half + plan_.gather().slab_offset(source, tensor);
    return encode(ring_backward_slab_view(plan_, source, slab), "workspace", map);
  }

  /// The maps stay until a launch comes with other tensors.
  Status encode_tensors(const AttentionBackwardArguments& arguments) {
    const Tensors given{arguments.q, arguments.k, arguments.v, arguments.d_out};
    if (given == tensors_ || plan_.positions() == 0) return {};
    tensors_ = {};
    for (int part = 0; part < 2; ++part) {
      if (plan_.gather().part_rows[plan_.gather().rank][part] == 0) continue;
      MK_RETURN_IF_ERROR(encode(ring_backward_q_view(plan_, part, arguments.q), "q", parameters_.q[part]));
      MK_RETURN_IF_ERROR(
          encode(ring_backward_q_view(plan_, part, arguments.d_out), "d_out", parameters_.d_out[part]));
    }
    MK_RETURN_IF_ERROR(encode_own(arguments.k, "k", 0));
    MK_RETURN_IF_ERROR(encode_own(arguments.v, "v", 1));
    tensors_ = given;
    return {};
  }

  Status encode_own(const void* kv, const char* name, std::int32_t tensor) {
    MK_RETURN_IF_ERROR(encode(ring_backward_kv_view(plan_, kv), name, parameters_.own[tensor]));
    return encode_packed_attention_map(kKind, ring_push_view(plan_.ring, kv), name, parameters_.push[tensor]);
  }

  Status check(const AttentionBackwardArguments& arguments) const override {
    MK_RETURN_IF_ERROR(check_attention_backward_operands(kKind, arguments, plan_.positions()));
    return check_attention_backward_addresses(kKind, arguments);
  }

  Status launch(const AttentionBackwardArguments& arguments, std::uint64_t deadline_ns,
                CUstream_st* stream) override {
    MK_RETURN_IF_ERROR(encode_tensors(arguments));
    RingBackwardParameters p = parameters_;
    p.endpoint = endpoint(deadline_ns);
    p.out = arguments.out;
    p.d_out_rows = arguments.d_out;
    p.lse = arguments.lse;
    p.d_q = arguments.d_q;
    p.d_rows[0] = static_cast<std::byte*>(arguments.d_k);
    p.d_rows[1] = static_cast<std::byte*>(arguments.d_v);
    return queue(&p, plan_.ring.ctas, stream);
  }

  using Tensors = std::array<const void*, 4>;

  const RingBackwardPlan plan_;
  DeviceBuffer memory_;
  DeviceBuffer gathered_;                ///< TensorMap [half][source][tensor]
  RingBackwardParameters parameters_{};  ///< without the operands of a launch
  Tensors tensors_{};                    ///< that the maps are of
};

}  // namespace

Result<std::unique_ptr<CudaAttentionBackwardOperation>> make_cuda_ring_attention_backward(
    const AttentionShape& shape, const Topology& topology, std::uint32_t rank,
    const RingAttentionOptions& options) {
  auto machine = hopper_machine(name_of(kKind), options.machine, options.sms);
  if (!machine.ok()) return machine.status();
  auto plan = RingBackwardPlan::make(shape, topology, rank, *machine, options);
  if (!plan.ok()) return plan.status();
  const CooperativeKernel kernel =
      with_attention_config(shape, []<int kHeadDim, bool kCausal, DataType kType>() {
        return ring_backward_kernel_of<kHeadDim, kCausal, kType>();
      });
  std::unique_ptr<CudaAttentionBackwardOperation> made =
      std::make_unique<CudaRingBackward>(std::move(*plan), topology, rank);
  MK_RETURN_IF_ERROR(made->load(kernel, *machine));
  return made;
}

}  // namespace mkernel::kernels

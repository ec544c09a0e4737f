// The backward pass of ring attention on the cuda executor: the host's side of a launch.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/cuda/memory/hopper.h"
#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/attention_backward/plan.h"
#include "kernels/ops/ring_attention/backward/kernel.h"
#include "kernels/ops/ring_attention/backward/parameters.h"
#include "kernels/ops/ring_attention/backward/plan.h"
#include "kernels/ops/ring_attention/cuda_operands.h"
#include "kernels/ops/ring_attention/estimate.h"
#include "kernels/ops/ring_attention/kv_gather_maps.h"
#include "kernels/ops/ring_attention/with_config.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

// What a kernel may be given by value on every driver.
static_assert(sizeof(RingBackwardNodesParameters) <= 4096);

constexpr OpKind kKind = OpKind::kRingAttentionBackward;

class CudaRingBackward final : public CudaOperation<AttentionBackwardArguments> {
 public:
  CudaRingBackward(RingBackwardPlan plan, const Topology& topology, std::uint32_t rank)
      : CudaOperation(kKind, name_of(kKind), topology, rank), plan_(std::move(plan)) {}

  std::string signature() const override { return plan_.signature() + " cuda " + machine(); }
  Requirements requirements() const override {
    return {.workspace_bytes = plan_.partials.word_bytes(),
            .lent_bytes = plan_.data_bytes(),
            .lanes = plan_.lanes(),
            .gpu = true,
            .remote_adds = true};
  }
  double expected_seconds() const override { return estimated_seconds(plan_); }
  std::uint64_t wire_bytes() const override { return plan_.wire_bytes(); }

 private:
  bool several_nodes() const { return plan_.gather().rails() > 0; }

  /// All that stays as long as the workspaces do, the maps of every slab among it.
  Status attach() override {
    auto memory = DeviceBuffer::zeroed(static_cast<std::uint64_t>(ring_backward_scratch(plan_).bytes),
                                       "ring_attention_backward: sums of the gradients of queries");
    if (!memory.ok()) return memory.status();
    memory_ = std::move(*memory);
    if (several_nodes()) {
      auto wire = DeviceBuffer::zeroed(ring_backward_wire_bytes(plan_),
                                       "ring_attention_backward: counts of sums for other nodes");
      if (!wire.ok()) return wire.status();
      wire_ = std::move(*wire);
    }
    parameters_ = ring_backward_parameters(plan_, memory_.get(), wire_.get());
    MK_RETURN_IF_ERROR(
        encode_packed_attention_map(kKind, backward_rows_view(parameters_), "rows", parameters_.row_map));
    describe_owners(topology(), parameters_);
    return maps_.attach(topology(), rank(), workspace(), lent(), parameters_);
  }

  static Status encode(const MatrixView& view, const char* name, TensorMap& map) {
    return encode_attention_map(kKind, view, name, map);
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
    MK_RETURN_IF_ERROR(maps_.encode_own(arguments.k, arguments.v, parameters_));
    tensors_ = given;
    return {};
  }

  Status check(const AttentionBackwardArguments& arguments) const override {
    MK_RETURN_IF_ERROR(check_attention_backward_operands(kKind, arguments, plan_.positions()));
    return check_attention_backward_addresses(kKind, arguments);
  }

  Status launch(const AttentionBackwardArguments& arguments, std::uint64_t deadline_ns,
                CUstream_st* stream) override {
    MK_RETURN_IF_ERROR(encode_tensors(arguments));
    RingBackwardNodesParameters p = parameters_;
    p.endpoint = endpoint(deadline_ns);
    p.out = arguments.out;
    p.d_out_rows = arguments.d_out;
    p.lse = arguments.lse;
    p.d_q = arguments.d_q;
    p.d_rows[0] = static_cast<std::byte*>(arguments.d_k);
    p.d_rows[1] = static_cast<std::byte*>(arguments.d_v);
    const RingBackwardParameters& of_one_node = p;
    return queue(several_nodes() ? static_cast<const void*>(&p) : &of_one_node, plan_.ring.ctas, stream);
  }

  using Tensors = std::array<const void*, 4>;

  const RingBackwardPlan plan_;
  KvGatherMaps maps_{kKind, plan_.ring, kBackwardTileKeys};
  DeviceBuffer memory_;
  DeviceBuffer wire_;                         ///< over several nodes
  RingBackwardNodesParameters parameters_{};  ///< without the operands of a launch
  Tensors tensors_{};                         ///< that the maps are of
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
      with_attention_config(shape, [&]<int kHeadDim, bool kCausal, DataType kType>() {
        return topology.nodes() > 1 ? ring_backward_nodes_kernel_of<kHeadDim, kCausal, kType>()
                                    : ring_backward_kernel_of<kHeadDim, kCausal, kType>();
      });
  std::unique_ptr<CudaAttentionBackwardOperation> made =
      std::make_unique<CudaRingBackward>(std::move(*plan), topology, rank);
  MK_RETURN_IF_ERROR(made->load(kernel, *machine));
  return made;
}

}  // namespace mkernel::kernels

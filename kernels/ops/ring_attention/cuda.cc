// Ring attention on the cuda executor: the host's side of a launch.
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/cuda/memory/hopper.h"
#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/cuda_operands.h"
#include "kernels/ops/ring_attention/estimate.h"
#include "kernels/ops/ring_attention/gpu_plan.h"
#include "kernels/ops/ring_attention/kernel.h"
#include "kernels/ops/ring_attention/kv_gather_maps.h"
#include "kernels/ops/ring_attention/parameters.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/ops/ring_attention/varlen_kernel.h"
#include "kernels/ops/ring_attention/varlen_operation.h"
#include "kernels/ops/ring_attention/varlen_parameters.h"
#include "kernels/ops/ring_attention/with_config.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

// What a kernel may be given by value on every driver.
static_assert(sizeof(RingVarlenParameters) <= 4096);

constexpr OpKind kKind = OpKind::kRingAttention;

class CudaRingAttention : public CudaOperation<AttentionArguments> {
 public:
  CudaRingAttention(RingGpuPlan plan, const Topology& topology, std::uint32_t rank)
      : CudaOperation(kKind, name_of(kKind), topology, rank), plan_(std::move(plan)) {}

  std::string signature() const override { return plan_.signature() + " cuda " + machine(); }
  Requirements requirements() const override {
    return {.workspace_bytes = plan_.gather.word_bytes(),
            .lent_bytes = plan_.gather.data_bytes(),
            .lanes = plan_.lanes(),
            .gpu = true,
            .remote_adds = true};
  }
  std::uint64_t wire_bytes() const override { return plan_.wire_bytes(); }
  double expected_seconds() const override { return estimated_seconds(plan_); }

 protected:
  /// All that stays as long as the workspaces do, the maps of every slab among it.
  Status attach() override {
    auto counters = DeviceBuffer::zeroed(sizeof(AttentionCounters), "ring_attention: counters");
    if (!counters.ok()) return counters.status();
    counters_ = std::move(*counters);
    parameters_ = ring_attention_parameters(plan_, static_cast<AttentionCounters*>(counters_.get()));
    return maps_.attach(topology(), rank(), workspace(), lent(), parameters_);
  }

  Status check(const AttentionArguments& arguments) const override {
    MK_RETURN_IF_ERROR(plan_.check(arguments));
    return check_attention_addresses(kKind, arguments);
  }

  /// The maps of the operands, which stay until a launch comes with others, and all else that a launch has.
  Status describe(const AttentionArguments& arguments, std::uint64_t deadline_ns,
                  RingAttentionParameters& p) {
    MK_RETURN_IF_ERROR(encode_tensors(arguments));
    p = parameters_;
    p.endpoint = endpoint(deadline_ns);
    p.lse = arguments.lse;
    return {};
  }
  const RingGpuPlan& plan() const { return plan_; }

 private:
  Status launch(const AttentionArguments& arguments, std::uint64_t deadline_ns,
                CUstream_st* stream) override {
    RingAttentionParameters p{};
    MK_RETURN_IF_ERROR(describe(arguments, deadline_ns, p));
    return queue(&p, plan_.ctas, stream);
  }

  static Status encode(const MatrixView& view, const char* name, TensorMap& map) {
    return encode_attention_map(kKind, view, name, map);
  }

  Status encode_tensors(const AttentionArguments& arguments) {
    const Tensors given{arguments.q, arguments.k, arguments.v, arguments.out};
    if (given == tensors_ || plan_.gather.positions(plan_.gather.rank) == 0) return {};
    tensors_ = {};
    for (int part = 0; part < 2; ++part) {
      if (plan_.gather.part_rows[plan_.gather.rank][part] == 0) continue;
      MK_RETURN_IF_ERROR(encode(ring_q_view(plan_, part, arguments.q), "q", parameters_.q[part]));
      MK_RETURN_IF_ERROR(encode(ring_out_view(plan_, part, arguments.out), "out", parameters_.out[part]));
    }
    MK_RETURN_IF_ERROR(maps_.encode_own(arguments.k, arguments.v, parameters_));
    tensors_ = given;
    return {};
  }

  using Tensors = std::tuple<const void*, const void*, const void*, const void*>;

  const RingGpuPlan plan_;
  KvGatherMaps maps_{kKind, plan_, plan_.tile_keys()};
  DeviceBuffer counters_;
  RingAttentionParameters parameters_{};  ///< without the operands of a launch
  Tensors tensors_;                       ///< that the maps are of
};

/// Over packed sequences.
class CudaPackedRingAttention final : public CudaVarlenOperation<CudaRingAttention, AttentionSlot> {
 public:
  using CudaVarlenOperation::CudaVarlenOperation;

 private:
  Status attach() override {
    MK_RETURN_IF_ERROR(CudaRingAttention::attach());
    return allocate_list(plan().ctas, static_cast<std::int32_t>(plan().shape.max_sequences));
  }

  Status launch(const AttentionArguments& arguments, std::uint64_t deadline_ns,
                CUstream_st* stream) override {
    RingVarlenParameters p{};
    MK_RETURN_IF_ERROR(describe(arguments, deadline_ns, p));
    p.lengths = plan().lengths(arguments);
    p.scratch = scratch();
    p.section_heads = plan().section_heads();
    return queue(&p, plan().ctas, stream);
  }

  Status refuse(const BadLength& why) const override { return plan().refuse(why); }
};

/// For the shape of `plan`.
CooperativeKernel kernel_of(const RingGpuPlan& plan) {
  return with_attention_tile(plan.shape, plan.tile_keys(),
                             [&]<int kHeadDim, int kTileKeys, DataType kType>() {
                               return plan.packed() ? ring_varlen_kernel_of<kHeadDim, kTileKeys, kType>()
                                                    : ring_attention_kernel_of<kHeadDim, kTileKeys, kType>();
                             });
}

}  // namespace

Result<std::unique_ptr<CudaAttentionOperation>> make_cuda_ring_attention(
    const AttentionShape& shape, const Topology& topology, std::uint32_t rank,
    const RingAttentionOptions& options) {
  auto machine = hopper_machine(name_of(kKind), options.machine, options.sms);
  if (!machine.ok()) return machine.status();
  auto plan = RingGpuPlan::make(shape, topology, rank, *machine, options);
  if (!plan.ok()) return plan.status();
  const CooperativeKernel kernel = kernel_of(*plan);
  std::unique_ptr<CudaAttentionOperation> made;
  if (plan->packed()) {
    made = std::make_unique<CudaPackedRingAttention>(std::move(*plan), topology, rank);
  } else {
    made = std::make_unique<CudaRingAttention>(std::move(*plan), topology, rank);
  }
  MK_RETURN_IF_ERROR(made->load(kernel, *machine));
  return made;
}

}  // namespace mkernel::kernels

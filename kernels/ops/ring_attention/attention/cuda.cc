// Attention of a rank alone on the cuda executor: the host's side of a launch.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/cuda/memory/hopper.h"
#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/attention/kernel.h"
#include "kernels/ops/ring_attention/attention/parameters.h"
#include "kernels/ops/ring_attention/attention/plan.h"
#include "kernels/ops/ring_attention/attention/varlen_cuda.h"
#include "kernels/ops/ring_attention/cuda_operands.h"
#include "kernels/ops/ring_attention/estimate.h"
#include "kernels/ops/ring_attention/with_config.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

// What a kernel may be given by value on every driver.
static_assert(sizeof(AttentionParameters) <= 4096);

constexpr OpKind kKind = OpKind::kAttention;

class CudaAttention final : public CudaOperation<AttentionArguments> {
 public:
  CudaAttention(AttentionPlan plan, const Machine& machine, const Topology& topology, std::uint32_t rank)
      : CudaOperation(kKind, name_of(kKind), topology, rank),
        plan_(std::move(plan)),
        sms_(machine.sms),
        expected_seconds_(estimated_seconds(plan_, machine)) {}

  std::string signature() const override { return plan_.signature() + " cuda " + machine(); }
  Requirements requirements() const override { return {.gpu = true}; }
  double expected_seconds() const override { return expected_seconds_; }

 private:
  Status attach() override {
    auto counters = DeviceBuffer::zeroed(sizeof(AttentionCounters), "attention: counters");
    if (!counters.ok()) return counters.status();
    counters_ = std::move(*counters);
    parameters_ = attention_parameters(plan_, static_cast<AttentionCounters*>(counters_.get()));
    return {};
  }

  Status check(const AttentionArguments& arguments) const override {
    MK_RETURN_IF_ERROR(plan_.check(arguments));
    return check_attention_addresses(kKind, arguments);
  }

  Status launch(const AttentionArguments& arguments, std::uint64_t deadline_ns,
                CUstream_st* stream) override {
    const AttentionViews views{attention_q_view(plan_, arguments.q), attention_kv_view(plan_, arguments.k),
                               attention_kv_view(plan_, arguments.v),
                               attention_out_view(plan_, arguments.out)};
    MK_RETURN_IF_ERROR(maps_.encode(arguments, views, parameters_));
    AttentionParameters p = parameters_;
    p.endpoint = endpoint(deadline_ns);
    p.lse = arguments.lse;
    return queue(&p, std::min(sms_, p.tasks.tasks()), stream);
  }

  const AttentionPlan plan_;
  const std::int32_t sms_;
  const double expected_seconds_;
  DeviceBuffer counters_;
  AttentionParameters parameters_{};  ///< without the operands of a launch
  AttentionMaps maps_;
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
  if (!plan->plain()) return make_cuda_varlen_attention(std::move(*plan), topology, rank, *machine);
  const CooperativeKernel kernel =
      with_attention_tile(shape, plan->tile_keys(), []<int kHeadDim, int kTileKeys, DataType kType>() {
        return attention_kernel_of<kHeadDim, kTileKeys, kType>();
      });
  std::unique_ptr<CudaAttentionOperation> made =
      std::make_unique<CudaAttention>(std::move(*plan), *machine, topology, rank);
  MK_RETURN_IF_ERROR(made->load(kernel, *machine));
  return made;
}

}  // namespace mkernel::kernels

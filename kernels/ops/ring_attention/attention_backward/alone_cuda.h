// The backward pass of attention of a rank alone on the cuda executor: what operations over sequences of one
// length and of different lengths have in common.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/ops/ring_attention/attention_backward/parameters.h"
#include "kernels/ops/ring_attention/attention_backward/plan.h"
#include "kernels/ops/ring_attention/cuda_operands.h"
#include "kernels/ops/ring_attention/estimate.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {

/// `Parameters`: those of the kernel, AloneBackwardParameters and what else it is given.
template <class Parameters>
class CudaAloneBackward : public CudaOperation<AttentionBackwardArguments> {
 public:
  std::string signature() const override { return plan_.signature() + " cuda " + machine(); }
  Requirements requirements() const override { return {.gpu = true}; }
  double expected_seconds() const override { return expected_seconds_; }

 protected:
  static constexpr OpKind kKind = OpKind::kAttentionBackward;

  CudaAloneBackward(AttentionBackwardPlan plan, const Machine& machine, const Topology& topology,
                    std::uint32_t rank)
      : CudaOperation(kKind, name_of(kKind), topology, rank),
        plan_(std::move(plan)),
        sms_(machine.sms),
        expected_seconds_(estimated_seconds(plan_, machine)) {}

  /// Memory of so many bytes for the queries, and the parameters that `make(memory)` returns.
  template <class Make>
  Status allocate_sums(std::int64_t bytes, const Make& make) {
    auto memory = DeviceBuffer::zeroed(static_cast<std::uint64_t>(bytes),
                                       "attention_backward: sums of the gradients of queries");
    if (!memory.ok()) return memory.status();
    memory_ = std::move(*memory);
    parameters_ = make(memory_.get());
    return encode_packed_attention_map(kKind, backward_rows_view(parameters_), "rows", parameters_.row_map);
  }

  Status check(const AttentionBackwardArguments& arguments) const override {
    MK_RETURN_IF_ERROR(plan_.check(arguments));
    return check_attention_backward_addresses(kKind, arguments);
  }

  /// The parameters of a launch. The maps, which `views` are of, stay until a launch comes with other
  /// tensors.
  Status describe(const AttentionBackwardArguments& arguments, const AttentionBackwardViews& views,
                  std::uint64_t deadline_ns, Parameters& p) {
    MK_RETURN_IF_ERROR(maps_.encode(arguments, views, parameters_));
    p = parameters_;
    p.endpoint = endpoint(deadline_ns);
    p.out = arguments.out;
    p.d_out_rows = arguments.d_out;
    p.lse = arguments.lse;
    p.d_q = arguments.d_q;
    return {};
  }

  const AttentionBackwardPlan& plan() const { return plan_; }
  std::int32_t sms() const { return sms_; }

 private:
  const AttentionBackwardPlan plan_;
  const std::int32_t sms_;
  const double expected_seconds_;
  DeviceBuffer memory_;
  Parameters parameters_{};  ///< without the operands of a launch
  AttentionBackwardMaps maps_;
};

}  // namespace mkernel::kernels

// The backward pass of attention of sequences of different lengths on the cuda executor: for
// make_cuda_attention_backward().
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/attention_backward/plan.h"
#include "kernels/plan/machine.h"

namespace mkernel::kernels {

/// For the current device, of a plan that is not plain, and that the cuda executor takes.
Result<std::unique_ptr<CudaAttentionBackwardOperation>> make_cuda_varlen_attention_backward(
    AttentionBackwardPlan plan, const Topology& topology, std::uint32_t rank, const Machine& machine);

}  // namespace mkernel::kernels

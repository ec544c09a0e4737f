// Attention of sequences of different lengths on the cuda executor: for make_cuda_attention().
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/attention/plan.h"
#include "kernels/plan/machine.h"

namespace mkernel::kernels {

/// For the current device, of a plan that is not plain() and that the cuda executor takes.
Result<std::unique_ptr<CudaAttentionOperation>> make_cuda_varlen_attention(AttentionPlan plan,
                                                                           const Topology& topology,
                                                                           std::uint32_t rank,
                                                                           const Machine& machine);

}  // namespace mkernel::kernels

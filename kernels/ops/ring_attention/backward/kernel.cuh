// The kernel of the backward pass of ring attention for one size of heads, mask and type; included by one
// file per instance, so that they compile side by side.
#pragma once

#include "kernels/cuda/launch/cooperative_launch.cuh"
#include "kernels/ops/ring_attention/backward/kernel.h"
#include "kernels/ops/ring_attention/backward/roles.cuh"

namespace mkernel::kernels {

template <int kHeadDim, bool kCausal, DataType kType>
CooperativeKernel ring_backward_kernel_of() {
  using Config = AttentionBackwardConfig<kHeadDim, kCausal, kType>;
  return cooperative_kernel<Config>(&ring_backward_kernel<Config>, ring_backward_shared_bytes<Config>());
}

}  // namespace mkernel::kernels

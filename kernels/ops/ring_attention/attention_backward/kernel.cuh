// The kernel of the backward pass of attention of a rank alone for one size of heads, mask and type; included
// by one file per instance, so that they compile side by side.
#pragma once

#include "kernels/cuda/launch/cooperative_launch.cuh"
#include "kernels/ops/ring_attention/attention_backward/kernel.h"
#include "kernels/ops/ring_attention/attention_backward/roles.cuh"

namespace mkernel::kernels {

template <int kHeadDim, bool kCausal, DataType kType>
CooperativeKernel attention_backward_kernel_of() {
  using Config = AttentionBackwardConfig<kHeadDim, kCausal, kType>;
  return cooperative_kernel<Config>(&attention_backward_kernel<Config>,
                                    alone_shared_bytes<AttentionBackwardShared<Config>>());
}

}  // namespace mkernel::kernels

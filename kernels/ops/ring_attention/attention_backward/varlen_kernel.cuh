// The kernel of the backward pass of attention of sequences of different lengths for one size of heads, mask
// and type; included by one file per instance, so that they compile side by side.
#pragma once

#include "kernels/cuda/launch/cooperative_launch.cuh"
#include "kernels/ops/ring_attention/attention_backward/varlen_kernel.h"
#include "kernels/ops/ring_attention/attention_backward/varlen_roles.cuh"

namespace mkernel::kernels {

template <int kHeadDim, bool kCausal, DataType kType>
CooperativeKernel varlen_backward_kernel_of() {
  using Config = AttentionBackwardConfig<kHeadDim, kCausal, kType>;
  return cooperative_kernel<Config>(&varlen_backward_kernel<Config>,
                                    alone_shared_bytes<AttentionBackwardShared<Config>>());
}

template <int kHeadDim, DataType kType>
CooperativeKernel window_backward_kernel_of() {
  using Config = AttentionBackwardWindowConfig<kHeadDim, kType>;
  return cooperative_kernel<Config>(&varlen_backward_kernel<Config>,
                                    alone_shared_bytes<AttentionBackwardShared<Config>>());
}

}  // namespace mkernel::kernels

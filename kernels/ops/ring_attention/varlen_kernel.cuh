// The kernel of attention of sequences of different lengths for one size of heads, mask and type; included by
// one file per instance, so that they compile side by side.
#pragma once

#include "kernels/cuda/launch/cooperative_launch.cuh"
#include "kernels/ops/ring_attention/varlen_kernel.h"
#include "kernels/ops/ring_attention/varlen_roles.cuh"

namespace mkernel::kernels {

template <int kHeadDim, bool kMasked, DataType kType>
CooperativeKernel varlen_kernel_of() {
  using Config = AttentionConfig<kHeadDim, kMasked, kType>;
  return cooperative_kernel<Config>(&varlen_kernel<Config>, attention_shared_bytes<Config>());
}

}  // namespace mkernel::kernels

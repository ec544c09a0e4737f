// The kernel of attention of sequences of different lengths for one size of heads and of tiles, and type;
// included by one file per instance, so that they compile side by side.
#pragma once

#include "kernels/cuda/launch/cooperative_launch.cuh"
#include "kernels/ops/ring_attention/attention/varlen_kernel.h"
#include "kernels/ops/ring_attention/attention/varlen_roles.cuh"

namespace mkernel::kernels {

template <int kHeadDim, int kTileKeys, DataType kType>
CooperativeKernel varlen_kernel_of() {
  using Config = AttentionConfig<kHeadDim, kTileKeys, kType>;
  return cooperative_kernel<Config>(&varlen_kernel<Config>, alone_shared_bytes<AttentionShared<Config>>());
}

}  // namespace mkernel::kernels

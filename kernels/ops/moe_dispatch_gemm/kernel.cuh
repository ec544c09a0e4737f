// The mixture of experts' kernel for one type and layout; included by one file per instance, so that they
// compile side by side.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/launch/cooperative_launch.cuh"
#include "kernels/ops/moe_dispatch_gemm/kernel.h"
#include "kernels/ops/moe_dispatch_gemm/roles.cuh"

namespace mkernel::kernels {

template <DataType kType, Layout kLayoutW>
CooperativeKernel moe_kernel_of(std::size_t routing_bytes) {
  using Config = MoeConfig<kType, kLayoutW>;
  static_assert(Config::kCluster == kMoeCluster);
  return cooperative_kernel<Config>(&moe_kernel<Config>,
                                    std::max(sm90_feed_shared_bytes<Config>(), routing_bytes));
}

}  // namespace mkernel::kernels

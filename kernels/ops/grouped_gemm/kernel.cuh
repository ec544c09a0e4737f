// The grouped GEMM's kernel for one type and layout; included by one file per instance, so that they compile
// side by side.
#pragma once

#include <cstddef>

#include "kernels/cuda/launch/cooperative_launch.cuh"
#include "kernels/ops/grouped_gemm/kernel.h"
#include "kernels/ops/grouped_gemm/roles.cuh"

namespace mkernel::kernels {

template <DataType kType, Layout kLayoutB>
CooperativeKernel grouped_gemm_kernel_of() {
  using Config = GroupedGemmConfig<kType, kLayoutB>;
  static_assert(Config::kCluster == kGroupedGemmCluster);
  static_assert(sizeof(GroupedGemmShared<Config>) <= 227 * 1024, "more than a CTA can have");
  return cooperative_kernel<Config>(&grouped_gemm_kernel<Config>, sizeof(GroupedGemmShared<Config>));
}

}  // namespace mkernel::kernels

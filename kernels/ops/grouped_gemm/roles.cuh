// The kernel of the grouped GEMM.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gemm/sm90_feed.cuh"
#include "kernels/cuda/launch/first_cta.cuh"
#include "kernels/cuda/launch/rehearsal.cuh"
#include "kernels/ops/grouped_gemm/groups.h"
#include "kernels/ops/grouped_gemm/parameters.h"
#include "kernels/ops/grouped_gemm/tasks.cuh"

namespace mkernel::kernels {

/// Its feeding warp does more than the producing warps of a GEMM.
template <DataType kType, Layout kLayoutB>
struct GroupedGemmConfig : Sm90Config<kGroupedGemmTile, kType, kLayoutB> {
  static constexpr int kProducerRegisters = 56;
  static constexpr int kMultiplyRegisters = 224;
};

/// Shared memory of one CTA.
template <class Config>
struct alignas(1024) GroupedGemmShared {
  Sm90FeedShared<Config> feed;
  GroupedGemmTable table;
  LaunchBegin begin;  ///< of CTA 0
};

/// All CTAs take tiles until there are none.
template <class Config>
__device__ __forceinline__ void grouped_gemm_cta(const GroupedGemmParameters& p, std::byte* memory) {
  auto& shared = *reinterpret_cast<GroupedGemmShared<Config>*>(memory);
  compute_alone<Config::kThreads / 32>(p.endpoint, shared.begin, [&](const LaunchBegin& begin) {
    sm90_feed(GroupedGemmTasks<Config>(p, begin.epoch, shared.table), shared.feed);
  });
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void grouped_gemm_kernel(const __grid_constant__ GroupedGemmParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  if (!is_rehearsal(p.endpoint)) grouped_gemm_cta<Config>(p, memory);
}

}  // namespace mkernel::kernels

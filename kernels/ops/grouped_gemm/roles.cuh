// The kernel of the grouped GEMM.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gemm/sm90_feed.cuh"
#include "kernels/cuda/launch/end.cuh"
#include "kernels/cuda/launch/poller.cuh"
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
};

/// All CTAs take tiles until there are none; CTA 0 ends the launch. Its poller comes when its own tiles are
/// stored: it has nobody to poll for earlier. A tile waits for no other rank, so the launch ends by itself,
/// and fails then if the host has aborted it. It is a multiplying warp, which has the most registers left.
template <class Config>
__device__ __forceinline__ void grouped_gemm_cta(const GroupedGemmParameters& p, std::byte* memory) {
  LaunchControl& control = *p.endpoint.control;
  if (control.stopped != 0) return count_out(control);
  begin_role(p.endpoint.trace);
  auto& shared = *reinterpret_cast<GroupedGemmShared<Config>*>(memory);
  const LaunchBegin begin(control, nullptr);
  sm90_feed(GroupedGemmTasks<Config>(p, begin.epoch, shared.table), shared.feed);
  end_role(p.endpoint.trace, DeviceRole::kCompute);
  if (blockIdx.x != 0) return end_cta(control);
  if (threadIdx.x / 32 == Config::kThreads / 32 - 1)
    poll_host(control, p.endpoint.host, PolledCounts{}, gridDim.x - 1);
  end_launch(control, nullptr, begin);
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void grouped_gemm_kernel(const __grid_constant__ GroupedGemmParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  grouped_gemm_cta<Config>(p, memory);
}

}  // namespace mkernel::kernels

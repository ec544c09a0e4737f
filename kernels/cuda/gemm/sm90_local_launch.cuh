// The launch of sm90_local.cuh's kernel for one tile; included by one file per tile, so that they compile
// side by side.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/launch_clusters.cuh"
#include "kernels/cuda/gemm/sm90_launch.h"
#include "kernels/cuda/gemm/sm90_local.cuh"
#include "kernels/cuda/gemm/with_tile.h"
#include "kernels/plan/sm90_tile.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// Queues the kernel on `stream`.
template <class Config>
Status launch_sm90_local(const Sm90LocalProduct& product, std::int32_t ctas, CUstream_st* stream) {
  return launch_clusters(&sm90_local_kernel<Config>, static_cast<unsigned>(ctas), Config::kCluster,
                         Config::kThreads, sm90_shared_bytes<Config>(), product, stream);
}

template <Sm90Tile kTile>
Status launch_sm90_local(const GemmShape& shape, const Sm90LocalProduct& product, const Sm90Plan& plan,
                         CUstream_st* stream) {
  return with_types(shape, [&]<DataType kInput, Layout kLayoutB>() {
    using Stacked = Sm90Config<kTile, kInput, kLayoutB, Sm90Cluster::kStacked>;
    using SideBySide = Sm90Config<kTile, kInput, kLayoutB, Sm90Cluster::kSideBySide>;
    return plan.cluster == Sm90Cluster::kStacked ? launch_sm90_local<Stacked>(product, plan.ctas, stream)
                                                 : launch_sm90_local<SideBySide>(product, plan.ctas, stream);
  });
}

}  // namespace mkernel::kernels

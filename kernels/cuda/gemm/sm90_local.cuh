// The product of matrices that lie on this GPU: the GEMM body with the plainest schedule, and its launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/gemm/sm90_body.cuh"
#include "kernels/cuda/gemm/sm90_launch.h"
#include "kernels/cuda/gemm/sm90_share.cuh"
#include "kernels/cuda/memory/error.h"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/plan/sm90_tile.h"

namespace mkernel::kernels {

/// The tiles of the deal; nothing to wait for, nobody to tell.
template <class Config, class Tile = Config>
class Sm90LocalSchedule {
 public:
  static constexpr bool kWaits = false;

  explicit __device__ __forceinline__ Sm90LocalSchedule(const Sm90LocalProduct& product)
      : product_(product) {}

  __device__ __forceinline__ int tiles() const { return Share::tiles(product_.deal, 0); }
  __device__ __forceinline__ int k_blocks() const { return product_.k_blocks; }
  __device__ __forceinline__ Sm90TilePlace tile(int i) const {
    const auto [block, column] = Share::place(product_.deal, 0, i);
    const int row = Share::first_row(block);
    return {&product_.a, &product_.b, &product_.c, row, column, 0, row, column};
  }
  __device__ __forceinline__ auto tail() const requires Config::kHasTail {
    return Sm90LocalSchedule<Config, Sm90Tail<Config>>(product_);
  }

 private:
  using Share = Sm90Share<Config, Tile>;
  const Sm90LocalProduct& product_;
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void sm90_local_kernel(const __grid_constant__ Sm90LocalProduct product) {
  extern __shared__ __align__(1024) std::byte memory[];
  sm90_gemm(Sm90LocalSchedule<Config>(product), *reinterpret_cast<Sm90Shared<Config>*>(memory));
}

/// Queues the kernel on `stream`.
template <class Config>
Status launch_sm90_local(const Sm90LocalProduct& product, std::int32_t ctas, CUstream_st* stream) {
  constexpr auto kBytes = static_cast<int>(sm90_shared_bytes<Config>());
  const auto kernel = &sm90_local_kernel<Config>;
  MK_RETURN_IF_ERROR(
      cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                  "gemm: shared memory"));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {Config::kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ctas));
  config.blockDim = dim3(Config::kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cuda_status(cudaLaunchKernelEx(&config, kernel, product), "gemm: launch");
}

template <Sm90Tile kTile>
Status launch_sm90_local(const GemmShape& shape, MatrixElement output, const Sm90LocalProduct& product,
                         const Sm90Plan& plan, CUstream_st* stream) {
  using enum MatrixElement;
  const auto with_layout = [&]<DataType kInput, MatrixElement kOutput, Layout kLayoutB>() {
    using Stacked = Sm90Config<kTile, kInput, kLayoutB, kOutput, Sm90Cluster::kStacked>;
    using SideBySide = Sm90Config<kTile, kInput, kLayoutB, kOutput, Sm90Cluster::kSideBySide>;
    return plan.cluster == Sm90Cluster::kStacked ? launch_sm90_local<Stacked>(product, plan.ctas, stream)
                                                 : launch_sm90_local<SideBySide>(product, plan.ctas, stream);
  };
  const auto with_types = [&]<DataType kInput, MatrixElement kOutput>() {
    return shape.b_layout == Layout::kRowMajor
               ? with_layout.template operator()<kInput, kOutput, Layout::kRowMajor>()
               : with_layout.template operator()<kInput, kOutput, Layout::kColumnMajor>();
  };
  if (shape.dtype == DataType::kBf16) {
    return output == kF32 ? with_types.template operator()<DataType::kBf16, kF32>()
                          : with_types.template operator()<DataType::kBf16, kBf16>();
  }
  return output == kF32 ? with_types.template operator()<DataType::kF16, kF32>()
                        : with_types.template operator()<DataType::kF16, kF16>();
}

}  // namespace mkernel::kernels

#include <cuda_runtime_api.h>

#include <tuple>

#include "kernels/cuda/gemm/sm90_body.cuh"
#include "kernels/cuda/gemm/sm90_maps.h"
#include "kernels/cuda/gemm/with_tile.h"
#include "kernels/cuda/memory/error.h"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/plan/machine.h"
#include "tests/kernels/gpu_gemm_chain.h"

namespace mkernel::test {
namespace {

using namespace mkernel::kernels;

struct Parameters {
  TensorMap x, v, h_out, h_in, w, y;
  Raster first, second;
  std::int32_t k_blocks;
  std::uint32_t* finished;
  std::uint32_t* failed;
};

/// Tiles of the first product, then those of the second, assigned out in turn.
template <class Config>
class ChainSchedule {
 public:
  static constexpr bool kWaits = true;

  explicit __device__ __forceinline__ ChainSchedule(const Parameters& p) : p_(p) {}

  __device__ __forceinline__ int tiles() const {
    return (p_.first.tiles() + p_.second.tiles() - cluster() + clusters() - 1) / clusters();
  }
  __device__ __forceinline__ int k_blocks() const { return p_.k_blocks; }
  __device__ __forceinline__ Sm90TilePlace tile(int i) const {
    const bool second = is_second(i);
    const RasterPlace place =
        second ? p_.second.place(index(i) - p_.first.tiles()) : p_.first.place(index(i));
    const int row = row_tile(place) * Config::kTileM;
    const int column = place.column * Config::kTileN;
    return {second ? &p_.h_in : &p_.x,
            second ? &p_.w : &p_.v,
            second ? &p_.y : &p_.h_out,
            row,
            column,
            0,
            row,
            column};
  }
  __device__ __forceinline__ void before_part(const Sm90TilePlace& tile, int) const {
    if (tile.a != &p_.h_in) return;
    const std::uint32_t* word = p_.finished + tile.a_row / Config::kTileM;
    const std::uint64_t end = ptx::globaltimer() + 5'000'000'000U;
    while (ptx::ld_acquire_gpu(word) < static_cast<std::uint32_t>(p_.first.columns())) {
      if (ptx::globaltimer() < end) continue;
      *p_.failed = 1;
      return;
    }
  }
  __device__ __forceinline__ void after_store(int i) const {
    if (!is_second(i)) ptx::red_add_release_gpu(p_.finished + row_tile(p_.first.place(index(i))), 1U);
  }

 private:
  static __device__ __forceinline__ int cluster() { return static_cast<int>(blockIdx.x) / Config::kCluster; }
  static __device__ __forceinline__ int clusters() { return static_cast<int>(gridDim.x) / Config::kCluster; }
  __device__ __forceinline__ int index(int i) const { return cluster() + i * clusters(); }
  __device__ __forceinline__ bool is_second(int i) const { return index(i) >= p_.first.tiles(); }
  static __device__ __forceinline__ int row_tile(const RasterPlace& place) {
    return place.row * Config::kCluster + static_cast<int>(blockIdx.x) % Config::kCluster;
  }

  const Parameters& p_;
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void chain_kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  sm90_gemm(ChainSchedule<Config>(p), *reinterpret_cast<Sm90Shared<Config>*>(memory));
}

template <Sm90Tile kTile>
Status launch(const Parameters& p, std::int32_t ctas) {
  using Config = Sm90Config<kTile, DataType::kBf16, Layout::kRowMajor>;
  constexpr auto kBytes = static_cast<int>(sm90_shared_bytes<Config>());
  const auto kernel = &chain_kernel<Config>;
  MK_RETURN_IF_ERROR(cuda_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "chain"));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {Config::kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ctas));
  config.blockDim = dim3(Config::kThreads);
  config.dynamicSmemBytes = kBytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cuda_status(cudaLaunchKernelEx(&config, kernel, p), "chain: launch");
}

}  // namespace

Status launch_chain(const Chain& chain, Sm90Tile tile, std::int32_t ctas) {
  constexpr auto kType = DataType::kBf16;
  const auto [m, k, n] = std::tuple(chain.m, chain.k, chain.n);
  const MatrixView views[] = {sm90_a_view(a_box_rows(tile), kType, chain.x, m, k),
                              sm90_b_view(kType, Layout::kRowMajor, chain.v, k, k),
                              sm90_c_view(kType, chain.h, m, k),
                              sm90_a_view(a_box_rows(tile), kType, chain.h, m, k),
                              sm90_b_view(kType, Layout::kRowMajor, chain.w, n, k),
                              sm90_c_view(kType, chain.y, m, n)};
  TensorMap maps[6];
  for (int i = 0; i < 6; ++i) {
    auto map = encode_tensor_map(views[i], "of the chain");
    if (!map.ok()) return map.status();
    maps[i] = *map;
  }
  const Parameters p{maps[0],
                     maps[1],
                     maps[2],
                     maps[3],
                     maps[4],
                     maps[5],
                     plan_sm90({m, k, k}, kH200.with_sms(ctas), tile).raster,
                     plan_sm90({m, n, k}, kH200.with_sms(ctas), tile).raster,
                     static_cast<std::int32_t>((k + kSm90TileK - 1) / kSm90TileK),
                     chain.finished,
                     chain.failed};
  return with_tile(tile, "chain", [&]<Sm90Tile kTile>() { return launch<kTile>(p, ctas); });
}

}  // namespace mkernel::test

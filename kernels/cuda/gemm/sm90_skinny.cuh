// The body for products of few rows on sm_90a: a tile has all rows of a and kSkinnyColumns columns of b. Such
// a product is bound by the memory that b lies in, so everything here is there to have many bytes of b under
// way. The tensor cores multiply at least 64 rows by any multiple of 8 columns: b, transposed, is their first
// operand and the few rows of a are the second. One CTA computes one part along k of one tile; those of a
// cluster then give each other their sums. Which part there is of what: plan/sm90_skinny.h.
//
// Warps 0-7 multiply (a warpgroup for each 64 columns), warp 8 loads.
//
// | who      | waits for        | which is complete because                                             |
// | load     | stage empty      | each multiplying warp arrives after `wait_group`                      |
// | multiply | stage full       | TMA counts bytes in place                                             |
// | sums     | the cluster      | nobody uses stages any more: sums may lie there                       |
// | sums     | those of others  | their stores count bytes in place (`st.async`)                        |
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/cuda/gemm/sm90_launch.h"
#include "kernels/cuda/gemm/sm90_skinny_config.cuh"
#include "kernels/cuda/gemm/sm90_skinny_sums.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sync/pipeline.cuh"

namespace mkernel::kernels {

/// What this CTA computes: steps [first, end) along k of the columns from `column` on.
struct Sm90SkinnyPart {
  std::int32_t column;
  std::int32_t first, end;

  explicit __device__ __forceinline__ Sm90SkinnyPart(const Sm90SkinnyProduct& product)
      : column(static_cast<std::int32_t>(blockIdx.x >> product.log2_split) * kSkinnyColumns) {
    const auto part = static_cast<std::int32_t>(ptx::cluster_cta_rank());
    first = (product.k_blocks * part) >> product.log2_split;
    end = (product.k_blocks * (part + 1)) >> product.log2_split;
  }
};

/// The loading warp, before anyone else uses a barrier: one lane for each stage.
template <class Config>
__device__ __forceinline__ void sm90_skinny_init(Sm90SkinnyShared<Config>& shared) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if (lane < Config::kStages) {
    Pipeline<Config::kStages>::init(shared.stages, 1, Config::kMultiplyWarps, lane, lane + 1);
  } else if (lane == Config::kStages) {
    Pipeline<1>::init(shared.others, 1, 1);
  }
  ptx::fence_mbarrier_init_release_cluster();
  __syncwarp();
}

/// One thread: steps [first, end) along k into the stages.
template <class Config>
__device__ __forceinline__ void sm90_skinny_load(const Sm90SkinnyProduct& product, std::int32_t column,
                                                 int first, int end, Sm90SkinnyShared<Config>& shared,
                                                 Pipeline<Config::kStages>& stages) {
  const std::uint32_t b = ptx::shared_address(shared.b), a = ptx::shared_address(shared.a);
  for (int block = first; block < end; ++block, stages.advance()) {
    const std::uint32_t full = stages.full_barrier();
    const std::uint32_t to_b = b + stages.stage() * Config::kBBytes;
    const int k = block * kSm90TileK;
    stages.wait_empty();
    stages.arrive_full_expect(Config::kBBytes + Config::kABytes);
#pragma unroll
    for (int box = 0; box < Config::kBBoxes; ++box) {
      const std::uint32_t to = to_b + box * Config::kBoxBytes;
      if constexpr (Config::kLayoutB == Layout::kRowMajor) {
        ptx::tma_load_2d(to, &product.b, column + box * 64, k, full);
      } else {
        ptx::tma_load_2d(to, &product.b, k, column + box * 64, full);
      }
    }
    ptx::tma_load_2d(a + stages.stage() * Config::kABytes, &product.a, k, 0, full);
  }
}

/// One step along k of one warpgroup: the products of its 64 columns, as one group.
template <class Config>
__device__ __forceinline__ void sm90_skinny_multiply_step(float (&sums)[Config::kSums], std::uint64_t b,
                                                          std::uint64_t a, bool accumulate) {
  // In units of 16 bytes, as descriptors count: 16 elements along a row of 64; 16 rows of b when k is
  // outside.
  constexpr std::uint64_t kStepB = Config::kMajorB == ptx::WgmmaMajor::kK ? 2 : 16 * 128 / 16;
  constexpr std::uint64_t kStepA = 2;
  constexpr auto kElement = Config::kWgmmaElement;
  constexpr auto kMajorA = ptx::WgmmaMajor::kK;
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSm90TileK / 16; ++step) {
    const std::uint64_t from_b = b + step * kStepB, from_a = a + step * kStepA;
    const bool add = accumulate || step > 0;
    if constexpr (Config::kRows == 16) {
      ptx::wgmma_m64n16k16<kElement, kMajorA, Config::kMajorB>(sums, from_b, from_a, add);
    } else if constexpr (Config::kRows == 32) {
      ptx::wgmma_m64n32k16<kElement, kMajorA, Config::kMajorB>(sums, from_b, from_a, add);
    } else {
      ptx::wgmma_m64n64k16<kElement, kMajorA, Config::kMajorB>(sums, from_b, from_a, add);
    }
  }
  ptx::wgmma_commit_group();
}

/// One warpgroup: its columns in `steps` steps along k. A stage is given back as soon as it was multiplied:
/// the tensor cores have time to spare, and the load that waits for it does not.
template <class Config>
__device__ __forceinline__ void sm90_skinny_multiply(int steps, float (&sums)[Config::kSums],
                                                     Sm90SkinnyShared<Config>& shared) {
  const int group = static_cast<int>(threadIdx.x / 128);
  const std::uint64_t b =
      ptx::wgmma_descriptor_swizzle128(ptx::shared_address(shared.b) + group * Config::kBoxBytes,
                                       Config::kMajorB == ptx::WgmmaMajor::kK ? 16 : 64 * 128, 8 * 128);
  const std::uint64_t a = ptx::wgmma_descriptor_swizzle128(ptx::shared_address(shared.a), 16, 8 * 128);
  Pipeline<Config::kStages> stages(shared.stages);
  for (int step = 0; step < steps; ++step, stages.advance()) {
    stages.wait_full();
    sm90_skinny_multiply_step<Config>(sums, b + stages.stage() * (Config::kBBytes / 16),
                                      a + stages.stage() * (Config::kABytes / 16), step > 0);
    ptx::wgmma_wait_group<0>();
    if (threadIdx.x % 32 == 0) stages.arrive_empty();
  }
}

/// The whole body: every thread of the CTA. The loads that fill the stages for the first time begin before
/// the CTA has met.
template <class Config>
__device__ __forceinline__ void sm90_skinny(const Sm90SkinnyProduct& product,
                                            Sm90SkinnyShared<Config>& shared) {
  const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x / 32), 0);
  const Sm90SkinnyPart part(product);
  // A named barrier, as warps with different duties come to it in different places.
  const auto meet = [] { ptx::barrier_sync(kSkinnyStagesBarrier, Config::kThreads); };
  if (warp == Config::kMultiplyWarps) {
    sm90_skinny_init(shared);
    Pipeline<Config::kStages> stages(shared.stages);
    const int first_lap = min(part.end, part.first + Config::kStages);
    const bool loads = ptx::elect_sync();
    if (loads) sm90_skinny_load(product, part.column, part.first, first_lap, shared, stages);
    __syncwarp();
    meet();
    if (loads) sm90_skinny_load(product, part.column, first_lap, part.end, shared, stages);
    __syncwarp();
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait_acquire();
  } else {
    meet();
    float sums[Config::kSums];
    sm90_skinny_multiply(part.end - part.first, sums, shared);
    ptx::cluster_arrive_relaxed();
    sm90_skinny_sum(product, part.column, sums, shared);
  }
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, kSkinnyCtasPerSm) void sm90_skinny_kernel(
    const __grid_constant__ Sm90SkinnyProduct product) {
  extern __shared__ __align__(1024) std::byte memory[];
  sm90_skinny(product, *reinterpret_cast<Sm90SkinnyShared<Config>*>(memory));
}

}  // namespace mkernel::kernels

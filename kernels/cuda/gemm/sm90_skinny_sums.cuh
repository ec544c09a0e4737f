// The way of the sums of few rows out of the registers: they meet in shared memory, in fp32, and each CTA of
// the cluster adds up and stores some of the rows.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/sm90_element.cuh"
#include "kernels/cuda/gemm/sm90_launch.h"
#include "kernels/cuda/gemm/sm90_skinny_config.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/shared.cuh"
#include "kernels/cuda/ptx/vector.cuh"
#include "kernels/cuda/sync/pipeline.cuh"

namespace mkernel::kernels {

/// One warp's part of adding up the sums of the cluster's CTAs. Row r of the tile is summed by CTA
/// r modulo the size of the cluster.
template <class Config>
class Sm90SkinnySums {
 public:
  __device__ __forceinline__ Sm90SkinnySums(const Sm90SkinnyProduct& product,
                                            Sm90SkinnyShared<Config>& shared)
      : product_(product),
        others_(shared.others),
        own_(ptx::shared_address(&shared) + Sm90SkinnyShared<Config>::kOwn),
        from_others_(ptx::shared_address(&shared) + Sm90SkinnyShared<Config>::kOthers),
        split_(1 << product.log2_split),
        part_(static_cast<int>(ptx::cluster_cta_rank())),
        warp_(static_cast<int>(threadIdx.x / 32)),
        lane_(static_cast<int>(threadIdx.x % 32)) {}

  /// Registers to rows. Of rows that are padding nothing is kept.
  __device__ __forceinline__ void write_own(const float (&sums)[Config::kSums]) const {
    const int column = warp_ * 16 + lane_ / 4;
#pragma unroll
    for (int i = 0; i < Config::kSums; ++i) {
      const int row = i / 4 * 8 + lane_ % 4 * 2 + i % 2;
      if (row < product_.m)
        ptx::st_shared_f32(own_ + row * Config::kSumRowBytes + (column + i % 4 / 2 * 8) * 4, sums[i]);
    }
  }

  /// One thread of the CTA, at any time: how much will come.
  __device__ __forceinline__ void expect_others() const {
    others_.arrive_full_expect((split_ - 1) * own_rows() * Config::kOtherRowBytes);
  }

  /// To each of the others its rows; when all of the cluster have left their stages.
  __device__ __forceinline__ void send() const {
    for (int row = warp_; row < product_.m; row += Config::kMultiplyWarps) {
      const int owner = row & (split_ - 1);
      if (owner == part_) continue;
      const std::uint32_t to = from_others_ + other_row(row, part_) + lane_ * 16;
      ptx::st_async_f32x4(ptx::map_to_cta(to, owner),
                          ptx::ld_shared_f32x4(own_ + row * Config::kSumRowBytes + lane_ * 16),
                          ptx::map_to_cta(others_.full_barrier(), owner));
    }
  }

  /// Adds up this CTA's rows, part by part along k, and stores them: a lane has four columns.
  __device__ __forceinline__ void store(std::int32_t column) const {
    if (split_ > 1) others_.wait_full_cluster();
    column += lane_ * 4;
    for (int row = part_ + warp_ * split_; row < product_.m; row += Config::kMultiplyWarps * split_) {
      const float4 sum = add_up(row);
      if (column >= product_.n) continue;
      ptx::st_v2(product_.c + (std::int64_t{row} * product_.n + column) * 2,
                 narrow_pair<Config::kInput>(sum.x, sum.y), narrow_pair<Config::kInput>(sum.z, sum.w));
    }
  }

 private:
  __device__ __forceinline__ int own_rows() const {
    return (product_.m - part_ + split_ - 1) >> product_.log2_split;
  }
  /// Where the sums of row `row` that come from `part` lie at the row's owner, behind kOthers.
  __device__ __forceinline__ std::uint32_t other_row(int row, int part) const {
    return ((row >> product_.log2_split << product_.log2_split) + part) * Config::kOtherRowBytes;
  }

  __device__ __forceinline__ float4 add_up(int row) const {
    // All loads first: one after the other they would take longer than anything else here.
    float4 parts[kSkinnyMostSplit];
#pragma unroll
    for (int part = 0; part < kSkinnyMostSplit; ++part) {
      if (part >= split_) continue;
      parts[part] = ptx::ld_shared_f32x4(
          (part == part_ ? own_ + row * Config::kSumRowBytes : from_others_ + other_row(row, part)) +
          lane_ * 16);
    }
    float4 sum = parts[0];
#pragma unroll
    for (int part = 1; part < kSkinnyMostSplit; ++part) {
      if (part >= split_) continue;
      sum.x += parts[part].x;
      sum.y += parts[part].y;
      sum.z += parts[part].z;
      sum.w += parts[part].w;
    }
    return sum;
  }

  const Sm90SkinnyProduct& product_;
  const Pipeline<1> others_;
  const std::uint32_t own_, from_others_;
  const int split_, part_, warp_, lane_;
};

/// The multiplying warps, each of whose threads has arrived at the cluster's barrier: from their sums to c.
template <class Config>
__device__ __forceinline__ void sm90_skinny_sum(const Sm90SkinnyProduct& product, std::int32_t column,
                                                const float (&sums)[Config::kSums],
                                                Sm90SkinnyShared<Config>& shared) {
  const auto meet = [] { ptx::barrier_sync(kSkinnySumsBarrier, Config::kMultiplyWarps * 32); };
  const Sm90SkinnySums<Config> way(product, shared);
  meet();  // all have left the stages
  way.write_own(sums);
  if (threadIdx.x == 0) way.expect_others();
  meet();  // all sums are written
  ptx::cluster_wait_acquire();
  way.send();
  way.store(column);
}

}  // namespace mkernel::kernels

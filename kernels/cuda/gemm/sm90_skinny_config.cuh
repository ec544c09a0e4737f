// What of the body for few rows is fixed at compile time, and the shared memory that follows from it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/cuda/gemm/sm90_element.cuh"
#include "kernels/cuda/sync/pipeline.cuh"
#include "kernels/plan/sm90_skinny_tile.h"

namespace mkernel::kernels {

/// Barriers; 0 is that of __syncthreads().
inline constexpr std::uint32_t kSkinnySumsBarrier = 1;    ///< multiplying warps
inline constexpr std::uint32_t kSkinnyStagesBarrier = 2;  ///< all warps: the stages are set up

template <std::int32_t kRows_, DataType kInput_, Layout kLayoutB_>
struct Sm90SkinnyConfig {
  static constexpr std::int32_t kRows = kRows_;  ///< padded
  static constexpr DataType kInput = kInput_;
  static constexpr Layout kLayoutB = kLayoutB_;

  static constexpr int kStages = skinny_stages(kRows);
  static constexpr int kMultiplyWarps = kSkinnyColumns / 64 * 4;
  static constexpr int kThreads = (kMultiplyWarps + 1) * 32;
  static constexpr int kSums = kRows / 2;  ///< registers

  static constexpr int kBoxBytes = 64 * kSm90TileK * 2;
  static constexpr int kBBoxes = kSkinnyColumns / 64;  ///< loads of b that make up a stage
  static constexpr int kBBytes = kBBoxes * kBoxBytes;
  static constexpr int kABytes = kRows * kSm90TileK * 2;

  /// A row of sums. The pad spreads those that a warp writes at a time over all banks.
  static constexpr int kSumRowBytes = kSkinnyColumns * 4 + 16;
  static constexpr int kOtherRowBytes = kSkinnyColumns * 4;

  static constexpr auto kWgmmaElement = sm90_wgmma_element(kInput);
  static constexpr auto kMajorB = kLayoutB == Layout::kRowMajor ? ptx::WgmmaMajor::kMn : ptx::WgmmaMajor::kK;
};

/// Shared memory of one CTA, at a 1024-byte boundary (the swizzle's period).
template <class Config>
struct alignas(1024) Sm90SkinnyShared {
  std::byte b[Config::kStages][Config::kBBytes];  ///< blocks of 64 columns
  std::byte a[Config::kStages][Config::kABytes];  ///< rows of kTileK
  PipelineBarriers<Config::kStages> stages;       ///< load -> multiply
  PipelineBarriers<1> others;                     ///< sums of the other CTAs of the cluster

  // Where the stages were, when the last of them was multiplied.
  static constexpr std::uint32_t kOwn = 0;  ///< all sums of this CTA: rows of kSumRowBytes
  /// Sums of the rows that this CTA adds up, as the others sent them: of each row one of every CTA.
  static constexpr std::uint32_t kOthers = Config::kRows * Config::kSumRowBytes;
  static_assert(kOthers + Config::kRows * Config::kOtherRowBytes <=
                Config::kStages * (Config::kBBytes + Config::kABytes));
};

/// Dynamic shared memory of a launch.
template <class Config>
constexpr std::size_t sm90_skinny_shared_bytes() {
  static_assert((sizeof(Sm90SkinnyShared<Config>) + 1024) * kSkinnyCtasPerSm <= 228 * 1024);
  return sizeof(Sm90SkinnyShared<Config>);
}

}  // namespace mkernel::kernels

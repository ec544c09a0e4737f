// What of the GEMM body is fixed at compile time, and the shared memory that follows from it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/cuda/gemm/sm90_element.cuh"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sync/pipeline.cuh"
#include "kernels/plan/sm90_tile.h"

namespace mkernel::kernels {

/// c[kTileM, kTileN] = a[kTileM, k] x b[k, kTileN] per tile, in steps of kTileK. Warps 0-3: producer
/// warpgroup (load, store, wait), 4-11: two multiplying warpgroups, each with half of the rows.
template <Sm90Tile kTile_, DataType kInput_, Layout kLayoutB_,
          Sm90Cluster kClusterShape_ = Sm90Cluster::kStacked>
struct Sm90Config {
  static constexpr Sm90Tile kTile = kTile_;
  static constexpr DataType kInput = kInput_;
  static constexpr Layout kLayoutB = kLayoutB_;
  static constexpr Sm90Cluster kClusterShape = kClusterShape_;

  static constexpr int kTileM = tile_rows(kTile);
  static constexpr int kTileN = tile_columns(kTile);
  static constexpr int kTileK = kSm90TileK;
  static constexpr int kClusterRows = cluster_rows(kTile, kClusterShape);  ///< CTAs that share b
  static constexpr int kClusterColumns = cluster_columns(kClusterShape);   ///< CTAs that share a
  static constexpr int kCluster = kClusterRows * kClusterColumns;
  static constexpr int kMultiplyWarpgroups = 2;
  static constexpr int kThreads = (1 + kMultiplyWarpgroups) * 128;
  static constexpr int kStageReaders = kMultiplyWarpgroups * 4 * kCluster;  ///< warps that give a stage back

  static constexpr int kBlocks = kTileM / kMultiplyWarpgroups / 64;  ///< wgmma rows of one warpgroup
  static constexpr int kSums = kTileN / 2;                           ///< registers of one block
  static constexpr int kRowBytes = kTileK * 2;                       ///< of a in shared memory
  static constexpr int kABytes = kTileM * kRowBytes;
  static constexpr int kBBytes = kTileN * kTileK * 2;
  static constexpr int kABoxes = kClusterColumns;  ///< loads that make up a stage
  static constexpr int kBBoxes = kTileN / 64;
  static constexpr int kStages = tile_stages(kTile);
  static constexpr int kAlone = 2;  ///< steps of a product that every CTA loads before its cluster has met

  // The output leaves in pieces of 64 rows x 128 bytes; a warpgroup has kSlots of them in shared memory.
  static constexpr int kPieceColumns = 64;
  static constexpr int kPieceBytes = 64 * 128;
  static constexpr int kPieceSums = kPieceColumns / 2;  ///< registers of one piece
  static constexpr int kPieces = kBlocks * kTileN / kPieceColumns;
  static constexpr int kSlots = 2;
  static constexpr int kAhead = 2;  ///< parts of rows that the loading thread may find waited for
  /// Pieces that wait in registers (narrowed) until the next tile's products are under way.
  static constexpr int kHeld = kPieces <= kSlots ? 0 : kPieces - kSlots;

  static constexpr int kProducerRegisters = 40;
  static constexpr int kMultiplyRegisters = 232;
  static constexpr auto kWgmmaElement = sm90_wgmma_element(kInput);
  static constexpr auto kMajorB = kLayoutB == Layout::kRowMajor ? ptx::WgmmaMajor::kMn : ptx::WgmmaMajor::kK;

  static_assert(kAlone <= kStages);
  static_assert(kBlocks >= 1 && kBlocks * 64 * kMultiplyWarpgroups == kTileM);
  static_assert(kBlocks * kSums <= 128, "sums of a thread: more would spill");
  static_assert(kHeld <= kSlots, "warps write what they hold without waiting for each other");

  static constexpr bool kHasTail = has_tail(kTile);
};

/// The narrow tiles that what is left over after whole waves of tiles is cut into: less is lost to SMs that
/// find no tile in the last wave. They go through the same stages, in the same clusters.
template <class Config>
using Sm90Tail = Sm90Config<Sm90Tile::k128x64, Config::kInput, Config::kLayoutB,
                            tail_cluster(Config::kTile, Config::kClusterShape)>;

/// Shared memory of one CTA, at a 1024-byte boundary (the swizzle's period).
template <class Config>
struct alignas(1024) Sm90Shared {
  std::byte a[Config::kStages][Config::kABytes];  ///< rows of kTileK
  std::byte b[Config::kStages][Config::kBBytes];  ///< blocks of 64 columns
  std::byte out[Config::kMultiplyWarpgroups][Config::kSlots][Config::kPieceBytes];
  PipelineBarriers<Config::kStages> stages;                              ///< load -> multiply
  PipelineBarriers<Config::kSlots> pieces[Config::kMultiplyWarpgroups];  ///< multiply -> store
  PipelineBarriers<Config::kAhead> parts;                                ///< wait -> load
  /// By tile % kStored: how many store warps are done with it. They are at most the stages of the pipelines
  /// apart.
  static constexpr int kStored = 16;
  std::uint32_t stored[kStored];
};

/// Where the operands of a Tile's steps along k lie, in bytes from Sm90Shared::a. The stages are the
/// kernel's: a narrow tile would use little of each, and with so few loads under way wait for them most of
/// the time. So the operands of another step lie where the rest of a wide b would be.
template <class Config, class Tile>
struct Sm90Stage {
  static constexpr int kStepBytes = Tile::kABytes + Tile::kBBytes;
  static constexpr int kSteps = 1 + (Config::kBBytes - Tile::kBBytes) / kStepBytes;  ///< in a stage
  static_assert(Tile::kABytes == Config::kABytes && kStepBytes % 1024 == 0);

  static __device__ __forceinline__ std::uint32_t a(int stage, int step) {
    return step == 0 ? stage * Config::kABytes : behind(stage, step);
  }
  static __device__ __forceinline__ std::uint32_t b(int stage, int step) {
    return step == 0 ? kB + stage * Config::kBBytes : behind(stage, step) + Tile::kABytes;
  }

 private:
  static constexpr int kB = sizeof(Sm90Shared<Config>::a);
  static_assert(offsetof(Sm90Shared<Config>, b) == kB);
  static __device__ __forceinline__ std::uint32_t behind(int stage, int step) {
    return kB + stage * Config::kBBytes + Tile::kBBytes + (step - 1) * kStepBytes;
  }
};

/// Dynamic shared memory of a launch.
template <class Config>
constexpr std::size_t sm90_shared_bytes() {
  static_assert(sizeof(Sm90Shared<Config>) <= 227 * 1024, "more than a CTA can have");
  static_assert(Config::kStages + 4 < Sm90Shared<Config>::kStored, "stored");
  return sizeof(Sm90Shared<Config>);
}

}  // namespace mkernel::kernels

// How the tiles of a product are assigned to the computing CTAs of a kernel.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/sm90_config.cuh"
#include "kernels/plan/tile_assignment.h"

namespace mkernel::kernels {

/// The tiles of this CTA, when CTAs `first_cta` .. compute: every (number of clusters)-th cluster tile of an
/// order, or this cluster's part of an assignment; of the assignment the whole ones when Tile is Config, the
/// tail when it is Sm90Tail<Config>. The cluster before `first_cta` is the assignment's first late one.
/// Nothing is kept: the multiplying warps would carry it through their products, and have no register to
/// spare.
template <class Config, class Tile = Config>
struct Sm90Share {
  /// Where a tile of an assignment lies.
  struct Place {
    std::int32_t block;   ///< of a cluster's rows
    std::int32_t row;     ///< of the block
    std::int32_t column;  ///< of the matrix
  };

  /// Of `all` cluster tiles; the i-th of this CTA's is number index(first_cta, i).
  static __device__ __forceinline__ int tiles(std::int32_t all, std::int32_t first_cta) {
    return TileAssignment::share(all, cluster(first_cta), clusters(first_cta));
  }
  static __device__ __forceinline__ std::int32_t index(std::int32_t first_cta, int i) {
    return cluster(first_cta) + i * clusters(first_cta);
  }

  static __device__ __forceinline__ int tiles(const TileAssignment& assignment, std::int32_t first_cta) {
    if constexpr (kParts == 1) {
      return assignment.tiles(cluster(first_cta), clusters(first_cta));
    } else {
      return assignment.tail_tiles(cluster(first_cta), clusters(first_cta), kParts);
    }
  }
  static __device__ __forceinline__ Place place(const TileAssignment& assignment, std::int32_t first_cta,
                                                int i) {
    if constexpr (kParts == 1) {
      const auto [tile, part] = assignment.place(i, cluster(first_cta), clusters(first_cta));
      return {tile.row, row(),
              (tile.column * Config::kClusterColumns + in_cluster() / Config::kClusterRows) * Config::kTileN};
    } else {
      constexpr Sm90TailParts kTail = kTailParts;
      const auto [tile, part] = assignment.tail_place(i, cluster(first_cta), clusters(first_cta), kParts);
      const Sm90TailParts::Place in = kTail.place(part, in_cluster());
      return {tile.row, in.row, tile.column * kTail.columns + in.column};
    }
  }

  /// First row of a tile that begins with row `in_block` of block `block` of a cluster's rows.
  static __device__ __forceinline__ std::int32_t first_row(std::int32_t block,
                                                           std::int32_t in_block = row()) {
    return block * (Config::kClusterRows * Config::kTileM) + in_block;
  }
  /// Of the block, with which this CTA's whole tiles begin.
  static __device__ __forceinline__ std::int32_t row() {
    return in_cluster() % Config::kClusterRows * Config::kTileM;
  }

 private:
  static constexpr int kParts = Config::kTileN / Tile::kTileN;
  static constexpr Sm90TailParts kTailParts = tail_parts_of(Config::kTile, Config::kClusterShape);

  static __device__ __forceinline__ std::int32_t in_cluster() {
    return static_cast<std::int32_t>(blockIdx.x % Config::kCluster);
  }
  static __device__ __forceinline__ std::int32_t cluster(std::int32_t first_cta) {
    return static_cast<std::int32_t>(blockIdx.x / Config::kCluster) - first_cta / Config::kCluster;
  }
  static __device__ __forceinline__ std::int32_t clusters(std::int32_t first_cta) {
    return (static_cast<std::int32_t>(gridDim.x) - first_cta) / Config::kCluster;
  }
};

}  // namespace mkernel::kernels

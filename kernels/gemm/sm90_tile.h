// The tiles that the GEMM body is built for, and which one a shape gets. Pure functions.
#pragma once

#include <cstdint>

#include "kernels/schedule/raster.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Rows x columns of one CTA's tile; a cluster is two CTAs, one below the other, that share b.
enum class Sm90Tile : std::uint32_t { k128x256 = 0, k256x128 = 1, k128x128 = 2, k128x64 = 3 };
inline constexpr Sm90Tile kSm90Tiles[] = {Sm90Tile::k128x256, Sm90Tile::k256x128, Sm90Tile::k128x128,
                                          Sm90Tile::k128x64};
inline constexpr int kSm90TileK = 64;

constexpr int tile_rows(Sm90Tile tile) {
  return tile == Sm90Tile::k256x128 ? 256 : 128;
}
constexpr int tile_columns(Sm90Tile tile) {
  return tile == Sm90Tile::k128x256 ? 256 : tile == Sm90Tile::k128x64 ? 64 : 128;
}
constexpr int tile_cluster(Sm90Tile tile) {
  return tile == Sm90Tile::k128x64 ? 1 : 2;
}
/// As many as fit beside 32 KiB for the output.
constexpr int tile_stages(Sm90Tile tile) {
  return (227 - 33) * 1024 / ((tile_rows(tile) + tile_columns(tile)) * kSm90TileK * 2);
}

/// How a product is cut and spread over the SMs.
struct Sm90Plan {
  Sm90Tile tile = Sm90Tile::k128x256;
  Raster raster;          ///< of cluster tiles (tile_cluster() tiles, one below the other)
  std::int32_t ctas = 0;  ///< a multiple of the cluster; each computes every (ctas / cluster)-th cluster tile
};

/// The tile with the smallest estimated time on `sms` multiprocessors, its order, and as many CTAs as are of
/// use. m, n, k >= 1.
Sm90Plan plan_sm90(const GemmShape& shape, std::int32_t sms);
/// The same for a tile that the caller has chosen.
Sm90Plan plan_sm90(const GemmShape& shape, std::int32_t sms, Sm90Tile tile);

}  // namespace mkernel::kernels

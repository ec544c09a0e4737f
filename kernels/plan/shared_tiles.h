// Tiles that owners share: where an owner has fewer rows than a tile, tiles of its own would be nearly empty,
// and the second operand would be read once per owner. Pure functions, the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/plan/raster.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Order of the tiles and whose rows they hold. The rows of an owner are never cut: a tile holds those of
/// `owners` ranks that follow each other, so whoever sums them waits for one tile of every source. Or, when
/// every rank gets all rows (PushReducePlan::to_all), a tile holds `tile_rows` of these and goes to
/// everybody.
struct SharedTiles {
  /// What one row of tiles holds.
  struct Rows {
    std::int32_t begin = 0, end = 0;  ///< owners [begin, end); none: the tile is empty
    std::int32_t skipped = 0;         ///< rows of the first owner that are above the tile

    /// The i-th owner that the tile is sent to, from the one after `rank` on: otherwise all ranks would send
    /// to the same one at a time.
    MK_HOST_DEVICE std::int32_t owner(std::int32_t i, std::int32_t rank) const {
      const std::int32_t first = rank + 1 > begin && rank + 1 < end ? rank + 1 : begin;
      return first + i < end ? first + i : first + i - (end - begin);
    }
  };

  Raster raster;            ///< of blocks (the rows of a cluster's tiles) and columns of tiles
  std::int32_t owners = 0;  ///< of a tile; 0: owners have tiles of their own (OwnerTiles)
  std::int32_t world = 1;
  std::int32_t tile_rows = 0;  ///< when every rank gets all rows, else 0

  MK_HOST_DEVICE bool any() const { return owners > 0; }
  MK_HOST_DEVICE bool to_all() const { return tile_rows > 0; }
  MK_HOST_DEVICE std::int32_t tiles() const { return raster.tiles(); }
  /// Of the row of tiles `row_tile`. Beyond the last row: no owners, or, when every rank gets all rows, as
  /// many rows skipped as there are, or more.
  MK_HOST_DEVICE Rows rows(std::int32_t row_tile) const {
    if (to_all()) return {0, world, row_tile * tile_rows};
    const std::int32_t begin = row_tile * owners;
    if (begin >= world) return {};
    return {begin, begin + owners < world ? begin + owners : world, 0};
  }
};

}  // namespace mkernel::kernels

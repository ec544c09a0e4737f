// How the sums of an owner's rows are dealt to warps: units of a few rows of one tile, in the order in which
// the tiles become complete. Pure functions, the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/schedule/raster.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// 4 KiB of 16-bit elements: what a warp reads of every slot for one unit. Short, because the last units of a
/// launch have nothing to hide under; long against the two words of global memory that each one begins with.
inline constexpr std::int32_t kReduceUnitElements = 2048;

/// A rank sums for as many owners as there are nodes: for its rail peers, then for itself. All have as many
/// units as the owner with most rows.
struct ReduceUnits {
  struct Turn {
    std::int32_t node_turn = 0;  ///< of the owner (owner_tiles.h); `others` is this rank
    std::int32_t unit = 0;       ///< of the owner's
  };
  struct Place {
    std::int64_t row = 0;  ///< first one, of the owner's rows; may lie beyond them
    std::int32_t row_tile = 0;
    std::int32_t column = 0;  ///< of tiles
  };

  Raster raster;                ///< of row blocks and columns of tiles; no rows: no units
  std::int32_t block_rows = 1;  ///< a multiple of tile_rows
  std::int32_t tile_rows = 1;   ///< a multiple of unit_rows
  std::int32_t unit_rows = 1;
  std::int32_t others = 0;  ///< owners on other nodes

  MK_HOST_DEVICE std::int32_t per_block() const { return block_rows / unit_rows; }
  /// Of one owner.
  MK_HOST_DEVICE std::int32_t units() const { return raster.tiles() * per_block(); }
  MK_HOST_DEVICE std::int32_t all_units() const { return (others + 1) * units(); }
  /// Of all units, in the order in which tiles become complete: those of other nodes' owners, a block of one
  /// after the other; then own ones, which need the partials of other nodes: nobody waits for these while
  /// there is work.
  MK_HOST_DEVICE Turn turn(std::int32_t index) const {
    const std::int32_t far = others * units();
    if (index >= far) return {others, index - far};
    const std::int32_t block = index / per_block();
    return {block % others, block / others * per_block() + index % per_block()};
  }
  MK_HOST_DEVICE Place place(std::int32_t unit) const {
    const RasterPlace block = raster.place(unit / per_block());
    const std::int64_t row =
        static_cast<std::int64_t>(block.row) * block_rows + unit % per_block() * unit_rows;
    return {row, static_cast<std::int32_t>(row / tile_rows), block.column};
  }

  /// Units before `unit` (0 .. units()) that hold any of an owner's `rows`: its place when only those are
  /// packed. In a band the units of a column follow each other from the upper rows to the lower ones, so
  /// those beyond the rows are the last ones of every column.
  MK_HOST_DEVICE std::int32_t packed(std::int32_t unit, std::int64_t rows) const {
    const std::int32_t band = unit / (raster.band * raster.columns * per_block());
    const std::int32_t above = band * raster.band * per_block();  // units of a column, in the bands before
    const auto filled = static_cast<std::int32_t>((rows + unit_rows - 1) / unit_rows);
    const std::int32_t left = raster.rows * per_block() - above;
    if (filled <= above || left <= 0) return raster.columns * filled;
    const std::int32_t height = left < raster.band * per_block() ? left : raster.band * per_block();
    const std::int32_t here = filled - above < height ? filled - above : height;
    const std::int32_t inside = unit - above * raster.columns, down = inside % height;
    return raster.columns * above + inside / height * here + (down < here ? down : here);
  }
};

}  // namespace mkernel::kernels

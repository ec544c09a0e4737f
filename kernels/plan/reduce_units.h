// How the sums of an owner's rows are assigned to warps: units of a few rows of one tile, in the order in
// which the tiles become complete. Pure functions, the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/base/divisor.h"
#include "kernels/plan/raster.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// 4 KiB of 16-bit elements: what a warp reads of every slot for one unit. Short, because the last units of a
/// launch have nothing to hide under; long against the two words of global memory that each one begins with.
inline constexpr std::int32_t kReduceUnitElements = 2048;

/// A rank sums for as many owners as there are nodes: for its rail peers, then for itself. All have as many
/// units as the owner with most rows.
struct ReduceUnits {
  struct Turn {
    std::int32_t node_turn = 0;  ///< of the owner (raster.h); `others` is this rank
    std::int32_t unit = 0;       ///< of the owner's
  };
  struct Place {
    std::int64_t row = 0;  ///< first one, of the owner's rows; may lie beyond them
    std::int32_t row_tile = 0;
    std::int32_t column = 0;  ///< of tiles
  };

  Raster raster;      ///< of row blocks and columns of tiles; no rows: no units
  Divisor per_block;  ///< units; a multiple of per_tile
  Divisor per_tile;   ///< units
  Divisor unit_rows;
  Divisor others = 0;  ///< owners on other nodes

  /// Of one owner.
  MK_HOST_DEVICE std::int32_t units() const { return raster.tiles() * per_block; }
  MK_HOST_DEVICE std::int32_t all_units() const { return (others + 1) * units(); }
  /// Of all units, in the order in which tiles become complete: those of other nodes' owners, a block of one
  /// after the other; then own ones, which need the partials of other nodes: nobody waits for these while
  /// there is work.
  MK_HOST_DEVICE Turn turn(std::int32_t index) const {
    const std::int32_t far = others * units();
    if (index >= far) return {others, index - far};
    const std::int32_t block = index / per_block;
    return {block % others, block / others * per_block + index % per_block};
  }
  MK_HOST_DEVICE Place place(std::int32_t unit) const {
    const RasterPlace block = raster.place(unit / per_block);
    const std::int32_t down = block.row * per_block + unit % per_block;
    return {std::int64_t{down} * unit_rows, down / per_tile, block.column};
  }

  /// Units before `unit` (0 .. units()) that hold any of an owner's `rows`: its place when only those are
  /// packed. In a band the units of a column follow each other from the upper rows to the lower ones, so
  /// those beyond the rows are the last ones of every column.
  MK_HOST_DEVICE std::int32_t packed(std::int32_t unit, std::int64_t rows) const {
    const std::int32_t first = raster.first_row(unit / per_block);
    const std::int32_t above = first * per_block;  // units of a column, in the bands before
    const std::int32_t filled = unit_rows.ceil(static_cast<std::int32_t>(rows));
    if (filled <= above || raster.rows() <= first) return raster.columns() * filled;
    const Divisor blocks = raster.height(first);
    const std::int32_t height = blocks * per_block;
    const std::int32_t here = filled - above < height ? filled - above : height;
    const std::int32_t inside = unit - above * raster.columns();
    const std::int32_t across = inside / per_block / blocks, down = inside - across * height;
    return raster.columns() * above + across * here + (down < here ? down : here);
  }
};

}  // namespace mkernel::kernels

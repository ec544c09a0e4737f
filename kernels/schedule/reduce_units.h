// How the sums of a rank's rows are dealt to warps: units of a few rows of one tile, in the order in which
// the tiles become complete. Pure functions, the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/schedule/raster.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// 4 KiB of 16-bit elements: what a warp reads of every slot for one unit. Short, because the last units of a
/// launch have nothing to hide under; long against the two words of global memory that each one begins with.
inline constexpr std::int32_t kReduceUnitElements = 2048;

struct ReduceUnits {
  struct Place {
    std::int64_t row = 0;  ///< first one, of the rank's rows; may lie beyond them
    std::int32_t row_tile = 0;
    std::int32_t column = 0;  ///< of tiles
  };

  Raster raster;                ///< of row blocks and columns of tiles; no rows: no units
  std::int32_t block_rows = 1;  ///< a multiple of tile_rows
  std::int32_t tile_rows = 1;   ///< a multiple of unit_rows
  std::int32_t unit_rows = 1;

  MK_HOST_DEVICE std::int32_t per_block() const { return block_rows / unit_rows; }
  MK_HOST_DEVICE std::int32_t units() const { return raster.tiles() * per_block(); }
  MK_HOST_DEVICE Place place(std::int32_t unit) const {
    const RasterPlace block = raster.place(unit / per_block());
    const std::int64_t row =
        static_cast<std::int64_t>(block.row) * block_rows + unit % per_block() * unit_rows;
    return {row, static_cast<std::int32_t>(row / tile_rows), block.column};
  }
};

}  // namespace mkernel::kernels

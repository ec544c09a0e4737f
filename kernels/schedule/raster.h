// In which order the tiles of one matrix product are computed, and how large they are. Pure functions, the
// same on host and device.
#pragma once

#include <cstdint>

#include "proto/abi/host_device.h"

namespace mkernel::kernels {

struct RasterPlace {
  std::int32_t row = 0;     ///< of tiles
  std::int32_t column = 0;  ///< of tiles
};

/// Order of a grid of rows x columns tiles: bands of `band` rows (the last may be lower), inside a band
/// column by column. The tiles that run at a time then form a block about `band` high, which reads about
/// (band + width) panels instead of one per tile, and L2 serves the rest.
struct Raster {
  std::int32_t rows = 1;
  std::int32_t columns = 1;
  std::int32_t band = 1;  ///< 1 ..; larger than `rows` counts as `rows`

  MK_HOST_DEVICE std::int32_t tiles() const { return rows * columns; }
  MK_HOST_DEVICE RasterPlace place(std::int32_t index) const {
    const std::int32_t per_band = band * columns;
    const std::int32_t first = index / per_band * band;
    const std::int32_t inside = index % per_band;
    const std::int32_t height = rows - first < band ? rows - first : band;
    return {first + inside % height, inside / height};
  }
};

}  // namespace mkernel::kernels

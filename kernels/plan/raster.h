// In which order the tiles of one matrix product are computed, and how large they are. Pure functions, the
// same on host and device.
#pragma once

#include <cstdint>

#include "kernels/base/divisor.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

struct RasterPlace {
  std::int32_t row = 0;     ///< of tiles
  std::int32_t column = 0;  ///< of tiles
};

/// Order of a grid of rows x columns tiles: bands of `band` rows (the last may be lower), inside a band
/// column by column. The tiles that run at a time then form a block about `band` high, which reads about
/// (band + width) panels instead of one per tile, and L2 serves the rest.
class Raster {
 public:
  /// `band`: larger than `rows` counts as `rows`; one below 1 has no places.
  Raster(std::int32_t rows = 1, std::int32_t columns = 1, std::int32_t band = 1)
      : rows_(rows),
        columns_(columns),
        band_(band),
        last_(band > 0 && rows % band > 0 ? rows % band : band) {}

  Raster with_band(std::int32_t band) const { return {rows_, columns_, band}; }

  MK_HOST_DEVICE std::int32_t rows() const { return rows_; }
  MK_HOST_DEVICE std::int32_t columns() const { return columns_; }
  MK_HOST_DEVICE std::int32_t band() const { return band_; }
  MK_HOST_DEVICE std::int32_t tiles() const { return rows_ * columns_; }

  /// Of the band that tile `index` lies in.
  MK_HOST_DEVICE std::int32_t first_row(std::int32_t index) const { return index / band_ / columns_ * band_; }
  /// Of the band that begins with row `first`.
  MK_HOST_DEVICE Divisor height(std::int32_t first) const { return rows_ - first < band_ ? last_ : band_; }

  MK_HOST_DEVICE RasterPlace place(std::int32_t index) const {
    const std::int32_t first = first_row(index), inside = index - first * columns_;
    const Divisor high = height(first);
    return {first + inside % high, inside / high};
  }

 private:
  std::int32_t rows_;
  Divisor columns_, band_, last_;  ///< last_: the height of a last band that is lower
};

}  // namespace mkernel::kernels

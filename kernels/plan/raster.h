// In which order the tiles of a matrix product are computed: of a rank's own product, and of one whose tiles
// other ranks wait for. Pure functions, the same on host and device.
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

/// Every owner's rows are cut into the same raster of cluster tiles (that of the owner with most rows; the
/// tiles beyond an owner's rows are empty). A tile is computed for one owner after the other, then the next
/// tile of the raster: no owner is written by everybody at a time, and the pieces of an owner's tile come
/// from all ranks at about the same time, so that its sums can be made all along. (All tiles of one owner
/// after the other would leave every sum to the last turn, and the links idle during it.) First the owners on
/// other nodes: what has to travel further is there first. Then those of this node.
///
/// Owners count in turns: `node turn` t = 0 .. nodes - 1 is the t + 1st node after this one, this one last;
/// within a node the local index counts likewise from the next one on, the own index last. So turn %
/// node_turns
/// == node_turns - 1 is an owner of this rank's local index, and the last turn is the rank itself.
struct OwnerTiles {
  struct Place {
    std::int32_t turn = 0;    ///< node turn x node_turns + turn within the node
    std::int32_t block = 0;   ///< of the owner's rows
    std::int32_t column = 0;  ///< of tiles
  };

  Raster raster;           ///< of one owner's row blocks and the columns of tiles
  Divisor far_turns = 0;   ///< owners on other nodes
  Divisor node_turns = 1;  ///< owners on this node

  MK_HOST_DEVICE std::int32_t turns() const { return far_turns + node_turns; }
  MK_HOST_DEVICE std::int32_t tiles() const { return turns() * raster.tiles(); }
  /// The turn that `owner` has at `rank`.
  MK_HOST_DEVICE std::int32_t turn_of(std::int32_t owner, std::int32_t rank) const {
    const std::int32_t node = owner / node_turns - rank / node_turns - 1;
    const std::int32_t local = owner % node_turns - rank % node_turns - 1;
    const std::int32_t near = local < 0 ? local + node_turns : local;
    return node * node_turns + near + (node < 0 ? turns() : 0);
  }
  MK_HOST_DEVICE Place place(std::int32_t index) const {
    const std::int32_t far = far_turns * raster.tiles();
    if (index < far) return at(index, 0, far_turns);
    return at(index - far, far_turns, node_turns);
  }

 private:
  MK_HOST_DEVICE Place at(std::int32_t index, std::int32_t first_turn, const Divisor& count) const {
    const RasterPlace place = raster.place(index / count);
    return {first_turn + index % count, place.row, place.column};
  }
};

}  // namespace mkernel::kernels

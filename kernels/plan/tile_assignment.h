// How the cluster tiles of a product are assigned to the clusters of a grid. Pure functions, the same on host
// and device.
#pragma once

#include <cstdint>

#include "kernels/plan/raster.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// The first `whole` cluster tiles of the raster go to the clusters in turn. The next `late` ones go to
/// clusters that have something else to do first: late cluster 0 .. is number -1 .. here. Those after them,
/// the tail, are cut into `parts` of narrow tiles (plan/sm90_tile.h), assigned in turn from where the whole
/// ones stopped: with tiles of one size, the clusters that find none in the last turn would stand still for
/// as long as a tile takes.
struct TileAssignment {
  struct Place {
    RasterPlace tile;
    std::int32_t part = 0;  ///< of the cluster tile; 0 when it is whole
  };

  Raster raster;
  std::int32_t whole = 0;          ///< 0 .. raster.tiles()
  std::int32_t late = 0;           ///< 0 .. raster.tiles() - whole
  std::int32_t late_clusters = 0;  ///< > 0 when `late` is

  /// Cluster tiles that are cut into parts.
  MK_HOST_DEVICE std::int32_t tail() const { return raster.tiles() - whole - late; }

  /// Of `clusters` that are not late, or of a late one: those that it computes whole.
  MK_HOST_DEVICE std::int32_t tiles(std::int32_t cluster, std::int32_t clusters) const {
    return cluster < 0 ? share(late, -1 - cluster, late_clusters) : share(whole, cluster, clusters);
  }
  MK_HOST_DEVICE Place place(std::int32_t i, std::int32_t cluster, std::int32_t clusters) const {
    return {raster.place(cluster < 0 ? whole - 1 - cluster + i * late_clusters : cluster + i * clusters), 0};
  }
  MK_HOST_DEVICE std::int32_t tail_tiles(std::int32_t cluster, std::int32_t clusters,
                                         std::int32_t parts) const {
    if (cluster < 0) return 0;
    return share(tail() * parts, turn(cluster, clusters), clusters);
  }
  MK_HOST_DEVICE Place tail_place(std::int32_t i, std::int32_t cluster, std::int32_t clusters,
                                  std::int32_t parts) const {
    const std::int32_t index = turn(cluster, clusters) + i * clusters;
    return {raster.place(whole + late + index / parts), index % parts};
  }

  /// How many of 0 .. all - 1 are `first`, first + step, ...; 0 <= first < step. No division when all get
  /// one at most: it would come before the first load.
  static MK_HOST_DEVICE std::int32_t share(std::int32_t all, std::int32_t first, std::int32_t step) {
    if (first >= all) return 0;
    return all <= step ? 1 : (all - first + step - 1) / step;
  }

 private:
  /// The cluster that comes first in the tail is the one after the last whole tile's.
  MK_HOST_DEVICE std::int32_t turn(std::int32_t cluster, std::int32_t clusters) const {
    const std::int32_t shifted = cluster - whole % clusters;
    return shifted < 0 ? shifted + clusters : shifted;
  }
};

}  // namespace mkernel::kernels

// What plan and kernel of the grouped GEMM have in common.
#pragma once

#include <cstdint>

#include "kernels/plan/sm90_tile.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

inline constexpr std::int32_t kMostGroups = 1024;

/// On the cuda executor: the tile of each CTA of a cluster of two.
inline constexpr Sm90Tile kGroupedGemmTile = Sm90Tile::k128x256;
inline constexpr std::int32_t kGroupedGemmCluster = 2;

/// The tasks of a launch that reads weights, and no more. Those that whole waves leave over are cut into
/// parts, of some columns each, and come first. Then clusters end at different times, and those that end last
/// have whole tasks: few of these have as many bytes under way as the memory needs, parts do not.
struct GroupedGemmCuts {
  struct Part {
    std::int32_t task, part, parts;
  };

  std::int32_t cut = 0;    ///< tasks that are cut, the first ones
  std::int32_t parts = 1;  ///< that each of them has
  std::int32_t whole = 0;  ///< tasks behind them

  MK_HOST_DEVICE std::int32_t tasks() const { return cut * parts + whole; }
  /// What number `index` of the launch is.
  MK_HOST_DEVICE Part part(std::int32_t index) const {
    if (index < cut * parts) return {index / parts, index % parts, parts};
    return {index - cut * parts + cut, 0, 1};
  }
};
/// Of `tasks` tasks that all take as long: those that whole waves of `clusters` leave over, in as many parts
/// (a power of two, `most` at most) as clusters can take at a time.
MK_HOST_DEVICE inline GroupedGemmCuts grouped_gemm_cuts(std::int32_t tasks, std::int32_t clusters,
                                                        std::int32_t most) {
  GroupedGemmCuts cuts{.cut = tasks % clusters};
  cuts.whole = tasks - cuts.cut;
  while (2 * cuts.parts <= most && 2 * cuts.parts * cuts.cut <= clusters) cuts.parts *= 2;
  return cuts;
}

/// A group that does not end where it may: `end` must be in [begin, max_rows].
struct BadEnd {
  std::int32_t group = -1;  ///< the first one; -1: there is none
  std::int32_t begin = 0;   ///< where the group before ends
  std::int32_t end = 0;
};

}  // namespace mkernel::kernels

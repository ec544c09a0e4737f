// What plan and kernel of the grouped GEMM have in common.
#pragma once

#include <cstdint>

#include "kernels/plan/sm90_tile.h"

namespace mkernel::kernels {

inline constexpr std::int32_t kMostGroups = 1024;

/// On the cuda executor: the tile of each CTA of a cluster of two.
inline constexpr Sm90Tile kGroupedGemmTile = Sm90Tile::k128x256;
inline constexpr std::int32_t kGroupedGemmCluster = 2;

/// A group that does not end where it may: `end` must be in [begin, max_rows].
struct BadEnd {
  std::int32_t group = -1;  ///< the first one; -1: there is none
  std::int32_t begin = 0;   ///< where the group before ends
  std::int32_t end = 0;
};

}  // namespace mkernel::kernels

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

/// The tasks at the end of a launch that reads weights, and no more: of whole tasks a few clusters would have
/// one, and the others none. So each is cut into parts, of some columns each.
struct GroupedGemmTail {
  struct Part {
    std::int32_t task, part, parts;
  };

  std::int32_t whole = 0;  ///< tasks before it
  std::int32_t cut = 0;    ///< tasks of it
  std::int32_t parts = 1;  ///< that each of them has

  MK_HOST_DEVICE std::int32_t tasks() const { return whole + cut * parts; }
  /// What number `index` of the launch is.
  MK_HOST_DEVICE Part part(std::int32_t index) const {
    if (index < whole) return {index, 0, 1};
    return {whole + (index - whole) / parts, (index - whole) % parts, parts};
  }
};
/// Of `tasks` tasks that all take as long: those that whole waves of `clusters` leave over, in as many parts
/// (a power of two, `most` at most) as clusters can take at a time.
MK_HOST_DEVICE inline GroupedGemmTail grouped_gemm_tail(std::int32_t tasks, std::int32_t clusters,
                                                        std::int32_t most) {
  GroupedGemmTail tail{.cut = tasks % clusters};
  tail.whole = tasks - tail.cut;
  while (2 * tail.parts <= most && 2 * tail.parts * tail.cut <= clusters) tail.parts *= 2;
  return tail;
}

/// A group that does not end where it may: `end` must be in [begin, max_rows].
struct BadEnd {
  std::int32_t group = -1;  ///< the first one; -1: there is none
  std::int32_t begin = 0;   ///< where the group before ends
  std::int32_t end = 0;
};

}  // namespace mkernel::kernels

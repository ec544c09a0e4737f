// Sections: how an owner's blocks of rows are cut for the order in which their tiles are computed, and in
// which order the sections follow. Pure functions, the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/plan/expert_blocks.h"
#include "kernels/plan/tile_pairs.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Consecutive blocks of one expert that go through all columns of tiles of a product before the next section
/// does: a section's weights are read from memory once, and its rows too if they fit the L2.
struct ExpertSections {
  std::int32_t count = 0;
  const std::int32_t* blocks_before = nullptr;  ///< [count + 1], in the order of the sections
  const std::int32_t* first_block = nullptr;    ///< [count], of the owner's blocks
  const std::int32_t* experts = nullptr;        ///< [count], local

  MK_HOST_DEVICE std::int32_t blocks(std::int32_t section) const {
    return blocks_before[section + 1] - blocks_before[section];
  }
};

/// Which sections there are, and their order. An expert is one part, or, with `apart`, two: its near blocks,
/// which have rows of this node alone, and its far ones, which have rows of other nodes. A part is cut into
/// sections of at most `most` blocks.
///
/// Order of the parts: the experts in local order. With `apart` the near blocks of the first half of the
/// experts, then the far blocks of all experts, then the near blocks of the other half. So rows cross from
/// other nodes while near blocks are computed, and the sums of far rows return while the last near blocks
/// are. Weights are read twice for that. Rows are pushed in the same order: those of the first half, then
/// those that have crossed, with the other half where these are on their way.
struct ExpertSectionCut {
  std::int32_t most = 1 << 30;  ///< even
  bool apart = false;

  MK_HOST_DEVICE std::int32_t parts(std::int32_t experts) const { return apart ? 2 * experts : experts; }
  /// Experts whose near blocks come before all far ones.
  MK_HOST_DEVICE std::int32_t first_experts(std::int32_t experts) const {
    return apart ? experts / 2 : experts;
  }
  /// 0 <= `part` < parts(). Local.
  MK_HOST_DEVICE std::int32_t expert(std::int32_t experts, std::int32_t part) const {
    const std::int32_t first = first_experts(experts);
    return part < first ? part : part - (is_far(experts, part) ? first : experts);
  }
  /// Of a part. `near_rows`: [owned.experts], rows of the ranks of this node, which come first in their
  /// expert; not looked at without `apart`. A block with rows of both kinds is a far one.
  MK_HOST_DEVICE std::int32_t blocks(const OwnedExperts& owned, const std::int32_t* near_rows,
                                     std::int32_t part) const {
    const std::int32_t of = expert(owned.experts, part), all = owned.cut.blocks(owned.rows[of]);
    if (!apart) return all;
    const std::int32_t near = near_blocks(owned, near_rows, of);
    return is_far(owned.experts, part) ? all - near : near;
  }
  /// Of the owner's blocks: where a part begins.
  MK_HOST_DEVICE std::int32_t first_block(const OwnedExperts& owned, const std::int32_t* near_rows,
                                          std::int32_t part) const {
    const std::int32_t of = expert(owned.experts, part), first = owned.first_block(of);
    return is_far(owned.experts, part) ? first + near_blocks(owned, near_rows, of) : first;
  }

  /// Of a part of `blocks` blocks.
  MK_HOST_DEVICE std::int32_t sections(std::int32_t blocks) const {
    if (blocks == 0) return 0;
    const std::int32_t each = blocks_of_band(blocks, most);
    return (blocks + each - 1) / each;
  }
  /// Blocks of such a part before its section `number`.
  MK_HOST_DEVICE std::int32_t blocks_before(std::int32_t blocks, std::int32_t number) const {
    return number * blocks_of_band(blocks, most);
  }
  /// Sections of all parts, at most.
  MK_HOST_DEVICE std::int32_t most_sections(std::int32_t experts, std::int32_t all_blocks) const {
    return parts(experts) + all_blocks / most;
  }

 private:
  MK_HOST_DEVICE bool is_far(std::int32_t experts, std::int32_t part) const {
    const std::int32_t first = first_experts(experts);
    return apart && part >= first && part < first + experts;
  }
  MK_HOST_DEVICE static std::int32_t near_blocks(const OwnedExperts& owned, const std::int32_t* near_rows,
                                                 std::int32_t expert) {
    const std::int32_t rows = owned.rows[expert], near = near_rows[expert];
    return near == rows ? owned.cut.blocks(rows) : near / owned.cut.block;
  }
};

}  // namespace mkernel::kernels

// The tiles of attention, and the order in which a persistent kernel takes them. Pure functions, the same on
// host and device.
#pragma once

#include <cstdint>

#include "kernels/base/divisor.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

inline constexpr std::int32_t kAttentionTileQueries = 128;

/// Keys of a tile: as many as registers and shared memory hold. For head_dim 128 tiles of 128 keys are nearly
/// as fast as those of 160, and better where they waste less: about half of a tile on the diagonal of a
/// `masked` product, and what a tile has behind the last of `keys` keys.
constexpr std::int32_t attention_tile_keys(std::int32_t head_dim, bool masked, std::int64_t keys) {
  if (head_dim == 64) return 192;
  const std::int64_t large = (keys + 159) / 160 * 160, small = (keys + 127) / 128 * 128;
  return masked || large * 50 > small * 51 ? 128 : 160;
}

/// Keys that the queries before `end` see at most. The mask is aligned at the bottom right: the last query
/// sees all keys, the one before it all but one.
MK_HOST_DEVICE inline std::int32_t attention_visible_keys(std::int32_t end, std::int32_t queries,
                                                          std::int32_t keys, bool causal) {
  if (!causal) return keys;
  const std::int32_t hidden = queries - end;
  return keys > hidden ? keys - hidden : 0;
}

MK_HOST_DEVICE constexpr std::int32_t attention_query_tiles(std::int32_t queries) {
  return (queries + kAttentionTileQueries - 1) / kAttentionTileQueries;
}

/// Heads of queries in a section: of the `kv_heads` heads of keys and values, `kv_bytes` each, as many as fit
/// the L2 together, at least `fewest`, and of each of these the `group` heads of queries that share it.
/// Sections have equal sizes, but for the last one.
MK_HOST_DEVICE inline std::int32_t attention_section_heads(std::int32_t kv_heads, std::int32_t group,
                                                           std::int64_t kv_bytes, std::int32_t fewest = 1) {
  // Less than the 50 MB of L2: it also holds queries and outputs on their way.
  constexpr std::int64_t kSectionBytes = std::int64_t{32} << 20;
  const std::int64_t fit = kSectionBytes / kv_bytes;
  const std::int64_t wanted = fit < fewest ? fewest : fit;
  const std::int32_t most = wanted < kv_heads ? static_cast<std::int32_t>(wanted) : kv_heads;
  const std::int32_t sections = (kv_heads + most - 1) / most;
  return (kv_heads + sections - 1) / sections * group;
}

struct AttentionHeadTile {
  std::int32_t head, tile;
};
/// What task number `task` computes. The numbers are those of heads and tiles, and of what follows from them:
/// heads of a section and of the last one, tasks of a section.
template <class Number>
MK_HOST_DEVICE AttentionHeadTile attention_head_tile(std::int32_t task, std::int32_t heads,
                                                     std::int32_t tiles, const Number& section_heads,
                                                     const Number& last_heads, const Number& section_tasks) {
  const std::int32_t section = task / section_tasks;
  const std::int32_t inside = task - section * section_tasks;
  const std::int32_t first = section * section_heads;
  const Number here = heads - first < section_heads ? last_heads : section_heads;
  return {first + inside % here, tiles - 1 - inside / here};
}

/// Tasks are pairs of a head and a tile of its queries. Heads that share keys follow each other. They are cut
/// into sections of equal size whose keys and values fit the L2. Within a section the last queries of all
/// heads come first: with a causal mask they have most keys, so the tasks at the end of a section are short,
/// and multiprocessors finish at about the same time.
class AttentionTasks {
 public:
  struct Place {
    std::int32_t batch = 0;
    std::int32_t head = 0;  ///< of the queries
    std::int32_t tile = 0;  ///< of the queries
  };

  AttentionTasks() = default;
  /// `heads` % `kv_heads` == 0. `tiles`: of the queries of a head; `kv_bytes`: keys and values of one head;
  /// `fewest`: heads of keys and values in a section.
  AttentionTasks(std::int32_t batch, std::int32_t heads, std::int32_t kv_heads, std::int32_t tiles,
                 std::int64_t kv_bytes, std::int32_t fewest = 1)
      : heads_(heads), all_heads_(batch * heads), tiles_(tiles) {
    const std::int32_t section_heads =
        attention_section_heads(batch * kv_heads, heads / kv_heads, kv_bytes, fewest);
    const std::int32_t left = all_heads_ % section_heads;
    section_heads_ = section_heads;
    last_heads_ = left > 0 ? left : section_heads;
    section_tasks_ = section_heads * tiles_;
  }

  MK_HOST_DEVICE std::int32_t tasks() const { return all_heads_ * tiles_; }
  /// Of all sections but the last, which may have fewer.
  std::int32_t section_heads() const { return section_heads_; }
  /// Where the tasks of the last section begin.
  MK_HOST_DEVICE std::int32_t last_section() const { return tasks() - last_heads_ * tiles_; }
  MK_HOST_DEVICE Place place(std::int32_t task) const {
    const AttentionHeadTile at =
        attention_head_tile(task, all_heads_, tiles_, section_heads_, last_heads_, section_tasks_);
    return {at.head / heads_, at.head % heads_, at.tile};
  }

 private:
  Divisor heads_ = 1;
  std::int32_t all_heads_ = 0, tiles_ = 0;
  Divisor section_heads_ = 1, last_heads_ = 1;  ///< heads of a section, and of the last one
  Divisor section_tasks_ = 1;
};

}  // namespace mkernel::kernels

// The kernel of the backward pass of attention of sequences of different lengths, and of sliding windows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/sm90_backward.cuh"
#include "kernels/cuda/launch/first_cta.cuh"
#include "kernels/cuda/launch/rehearsal.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/ptx/vector.cuh"
#include "kernels/ops/ring_attention/attention/varlen_table.cuh"
#include "kernels/ops/ring_attention/attention_backward/alone_feed.cuh"
#include "kernels/ops/ring_attention/attention_backward/queries.cuh"
#include "kernels/ops/ring_attention/attention_backward/varlen_parameters.h"

namespace mkernel::kernels {

template <class Config>
__device__ __forceinline__ AttentionBackwardTaskList varlen_backward_list(const VarlenBackwardParameters& p) {
  return {p.kv_heads, p.group, Config::kHeadDim, Config::kCausal,
          Config::kWindow ? p.window : AttentionWindow{}};
}

/// All threads of the CTA: its list of tasks.
/// NOTES: a call, for ptxas (13.0) keeps some of this in registers to the end of the kernel, and spills it.
template <class Config>
__device__ __noinline__ void fill_varlen_backward(const VarlenBackwardParameters& p,
                                                  AttentionBackwardSlot* slots, VarlenSorting& sorting) {
  varlen_fill(p.lengths, varlen_backward_list<Config>(p), slots, sorting);
}

/// The feed: CTAs take the tasks of the list in order, each the next one as soon as it has time. Tiles of
/// queries have their numbers over all sequences.
template <class Config>
class VarlenBackwardFeed : public AloneBackwardFeed<Config> {
 public:
  static constexpr bool kPacked = true;

  __device__ __forceinline__ VarlenBackwardFeed(const VarlenBackwardParameters& p,
                                                const AttentionBackwardSlot* slots)
      : AloneBackwardFeed<Config>(p), p_(p), slots_(slots) {}

  __device__ __forceinline__ bool next(AttentionBackwardTask& task) const {
    const std::uint64_t claimed = ptx::atom_add_relaxed_gpu(&p_.scratch->next_task[this->epoch() & 1], 1);
    const std::int32_t count = p_.lengths.sequences;
    if (claimed >= static_cast<std::uint64_t>(slots_[count].tasks_before)) return false;
    const auto number = static_cast<std::int32_t>(claimed);
    const AttentionBackwardSlot slot = slots_[attention_slot_of(slots_, count, number)];
    const auto place = varlen_backward_list<Config>(p_).place(slot, number - slot.tasks_before);
    const AttentionSequence& sequence = slot.sequence;
    task.heads = p_.group;
    task.walk = {place.walk.first + slot.first_tile, place.walk.last + slot.first_tile};
    task.steps = AttentionBackwardSteps(task.walk, task.heads).steps();
    // Keys end with the map, as the sequence ends with its last tile.
    const std::int32_t key = place.tile * Config::kTileKeys;
    const std::int32_t rows = min(sequence.keys - key, Config::kTileKeys);
    task.key = Config::kTileKeys - rows;
    task.keys = Config::kTileKeys;
    task.key_first = sequence.key_first + key + rows;
    task.key_column = place.kv_head * Config::kHeadDim;
    // From here on queries, and what they see of the keys above, count from tile number 0.
    const std::int32_t before = slot.first_tile * Config::kTileQueries;
    task.query_first = sequence.query_first - before;
    task.query_end = sequence.query_first + sequence.queries;
    task.query_column = place.kv_head * p_.group * Config::kHeadDim;
    task.first_key = sequence.keys - sequence.queries - key + task.key - before;
    task.head = place.kv_head * p_.group;
    task.before[0] = place.turn;
    if constexpr (Config::kWindow) {
      const AttentionBackwardWindowTiles tiles{sequence.queries, sequence.keys, p_.window};
      task.before[1] = tiles.first_key() - before;
    }
    return true;
  }

  /// The row behind the tile's last one, and as many rows before the end of the map as the tile has.
  __device__ __forceinline__ int query_first(const AttentionBackwardTask& task, int tile) const {
    return min(task.query_first + (tile + 1) * Config::kTileQueries, task.query_end);
  }
  __device__ __forceinline__ int query_row(const AttentionBackwardTask& task, int tile) const {
    return task.query_first + (tile + 1) * Config::kTileQueries - query_first(task, tile);
  }

  /// task.before: the task's turn without what a window hides, and with a window the first key that tile
  /// number 0 would see.
  __device__ __forceinline__ std::int32_t turn(const AttentionBackwardTask& task, int tile) const {
    if constexpr (!Config::kWindow) return task.before[0];
    return task.before[0] -
           AttentionBackwardWindowTiles::key_tile_of(tile * Config::kTileQueries + task.before[1]);
  }
  __device__ __forceinline__ const AttentionWindow& window() const { return p_.window; }

  __device__ __forceinline__ void finish() const {
    const std::int32_t units = p_.all_heads * p_.query_tiles;
    for (;;) {
      const std::uint64_t claimed = this->claim_left();
      if (claimed >= static_cast<std::uint64_t>(units)) return;
      const auto unit = static_cast<std::int32_t>(claimed);
      const AttentionQueryTile tile = attention_query_tile(p_.lengths, Config::kCausal, unit % p_.query_tiles,
                                                           Config::kWindow ? p_.window : AttentionWindow{});
      if (tile.begin < tile.end) narrow_backward_sums<Config>(p_.endpoint, p_, unit, tile.adds);
    }
  }

 private:
  const VarlenBackwardParameters& p_;
  const AttentionBackwardSlot* slots_;
};

/// All threads of every CTA: zeros for the gradients of keys that have no task, because their sequence has no
/// queries, or because they lie before every window. A CTA takes some rows of each such sequence.
template <class Config>
__device__ __forceinline__ void zero_unseen_keys(const VarlenBackwardParameters& p) {
  const auto warp = static_cast<std::int32_t>(threadIdx.x / 32),
             lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const std::int32_t row_bytes = p.kv_heads * Config::kHeadDim * 2;
  for (std::int32_t first = warp * 32; first < p.lengths.sequences; first += Config::kThreads) {
    AttentionSequence mine{};
    if (first + lane < p.lengths.sequences) mine = attention_sequence(p.lengths, first + lane);
    std::int32_t unseen = mine.queries == 0 ? mine.keys : 0;
    if constexpr (Config::kWindow)
      if (mine.queries > 0) unseen = varlen_backward_list<Config>(p).unseen_tiles(mine) * Config::kTileKeys;
    if (!__any_sync(~0U, unseen > 0)) continue;
    for (int of = 0; of < 32; ++of) {
      const std::int32_t rows = __shfl_sync(~0U, unseen, of);
      const std::int64_t begin = __shfl_sync(~0U, mine.key_first, of);
      for (auto row = static_cast<std::int32_t>(blockIdx.x); row < rows; row += p.preparing) {
        for (std::int32_t at = lane * 16; at < row_bytes; at += 32 * 16) {
          for (void* const tensor : p.d_rows)
            ptx::st_v4(static_cast<std::byte*>(tensor) + (begin + row) * row_bytes + at, uint4{0, 0, 0, 0});
        }
      }
    }
  }
}

/// All threads of a CTA of a launch that is refused: counts as prepared what nobody prepares, as these counts
/// are over all launches.
template <class Config>
__device__ __forceinline__ void skip_backward_rows(const VarlenBackwardParameters& p) {
  if (blockIdx.x != 0) return;
  for (auto head = static_cast<std::int32_t>(threadIdx.x); head < p.all_heads; head += Config::kThreads)
    ptx::red_add_release_gpu(&p.prepared[head], static_cast<std::uint64_t>(p.query_tiles));
}

/// All CTAs prepare rows, take tasks until there are none, and narrow what has been summed.
template <class Config>
__device__ __forceinline__ void varlen_backward_cta(const VarlenBackwardParameters& p, std::byte* memory) {
  auto& alone = *reinterpret_cast<AloneShared<AttentionBackwardShared<Config>>*>(memory);
  AttentionBackwardShared<Config>& shared = alone.body;
  // The body begins with a fence and a barrier, so its tiles may lie where this was.
  static_assert(sizeof(VarlenSorting) <= sizeof(shared.keys));
  auto& sorting = *reinterpret_cast<VarlenSorting*>(shared.keys);
  compute_alone<Config::kThreads / 32>(p.endpoint, alone.begin, [&](const LaunchBegin& begin) {
    if (blockIdx.x == 0 && threadIdx.x == 0) p.counters->next_unit[(begin.epoch + 1) & 1] = 0;
    if (!varlen_accept(p, begin.epoch, sorting)) return skip_backward_rows<Config>(p);
    AttentionBackwardSlot* slots =
        p.scratch->slots(static_cast<std::int32_t>(blockIdx.x), p.lengths.sequences);
    fill_varlen_backward<Config>(p, slots, sorting);
    zero_unseen_keys<Config>(p);
    prepare_all_backward_rows<Config>(p, static_cast<std::int32_t>(blockIdx.x));
    attention_backward_body(VarlenBackwardFeed<Config>(p, slots), shared);
  });
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void varlen_backward_kernel(
    const __grid_constant__ VarlenBackwardParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  if (!is_rehearsal(p.endpoint)) varlen_backward_cta<Config>(p, memory);
}

}  // namespace mkernel::kernels

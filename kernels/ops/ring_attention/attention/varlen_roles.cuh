// The kernel of attention of sequences of different lengths, and of sliding windows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/sm90_attention.cuh"
#include "kernels/cuda/launch/first_cta.cuh"
#include "kernels/cuda/launch/rehearsal.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/ops/ring_attention/attention/varlen_parameters.h"
#include "kernels/ops/ring_attention/attention/varlen_table.cuh"

namespace mkernel::kernels {

/// The feed: CTAs take the tasks of the list in order, each the next one as soon as it has time. Keys of a
/// task count from the first one that its queries see.
template <class Config>
class VarlenFeed {
  // So that what a window hides at its left lies in the first tile of keys.
  static_assert(Config::kTileKeys >= Config::kTileQueries);

 public:
  __device__ __forceinline__ VarlenFeed(const VarlenParameters& p, std::uint64_t epoch,
                                        const AttentionSlot* slots)
      : p_(p), epoch_(epoch), slots_(slots) {}

  __device__ __forceinline__ bool next(AttentionTask& task) const {
    const std::uint64_t claimed = ptx::atom_add_relaxed_gpu(&p_.scratch->next_task[epoch_ & 1], 1);
    const std::int32_t count = p_.lengths.sequences;
    if (claimed >= static_cast<std::uint64_t>(slots_[count].tasks_before)) return false;
    const auto number = static_cast<std::int32_t>(claimed);
    const AttentionSlot slot = slots_[attention_slot_of(slots_, count, number)];
    const AttentionHeadTile at = attention_slot_tile(slot, p_.heads, number - slot.tasks_before);
    const AttentionSequence& sequence = slot.sequence;
    const std::int32_t query = at.tile * Config::kTileQueries;
    const std::int32_t rows = min(sequence.queries - query, Config::kTileQueries);
    see(task, sequence, query, query + rows);
    task.query = Config::kTileQueries - rows;
    task.queries = Config::kTileQueries;
    task.query_first = sequence.query_first + query + rows;
    task.query_column = at.head * Config::kHeadDim;
    task.key_column = at.head / p_.group * Config::kHeadDim;
    task.lse =
        sequence.query_first * p_.lse_sequence + std::int64_t{at.head} * p_.lengths.all_queries + query;
    return true;
  }

  __device__ __forceinline__ const TensorMap& q(const AttentionTask&) const { return p_.q; }
  __device__ __forceinline__ const TensorMap& out(const AttentionTask&) const { return p_.out; }
  __device__ __forceinline__ constexpr int segments() const { return 1; }
  __device__ __forceinline__ AttentionSegment segment(const AttentionTask& task, int) const {
    return task.first;
  }
  template <AttentionOperand kOperand>
  __device__ __forceinline__ AttentionRows rows(const AttentionTask& task, int, int row) const {
    const std::int32_t rows = min(task.first.keys - row, Config::kTileKeys);
    return {.map = kOperand == AttentionOperand::kKeys ? &p_.k : &p_.v,
            .column = task.key_column,
            .first = task.part + row + rows,
            .before = Config::kTileKeys - rows - row};
  }
  __device__ __forceinline__ int hidden(const AttentionTask& task) const { return task.batch; }
  __device__ __forceinline__ float scale() const { return p_.scale; }
  __device__ __forceinline__ float* lse() const { return p_.lse; }
  __device__ __forceinline__ const DeviceTrace& trace() const { return p_.endpoint.trace; }

 private:
  /// What queries `query` .. `end` - 1 of the sequence see. task.part: the row of the first key; task.batch:
  /// keys of it that are hidden from the first query; every query behind it sees one less.
  __device__ __forceinline__ void see(AttentionTask& task, const AttentionSequence& sequence,
                                      std::int32_t query, std::int32_t end) const {
    const AttentionKeys keys = attention_window_keys(sequence, p_.window, query, end);
    // The position of the first query among the keys of the task.
    const std::int32_t position = query + sequence.keys - sequence.queries - keys.first;
    task.first.keys = task.first.visible = keys.end - keys.first;
    // Not beyond the last key: a sum of three large numbers would be too large.
    if (p_.window.right != AttentionWindow::kAll)
      task.first.visible = min(position + 1, task.first.keys - p_.window.right) + p_.window.right;
    task.batch = p_.window.left != AttentionWindow::kAll ? position - p_.window.left : -Config::kTileQueries;
    task.part = sequence.key_first + keys.first;
    task.key_tiles = task.first.tiles(Config::kTileKeys);
  }

  const VarlenParameters& p_;
  const std::uint64_t epoch_;
  const AttentionSlot* slots_;
};

/// All CTAs take tasks until there are none.
template <class Config>
__device__ __forceinline__ void varlen_cta(const VarlenParameters& p, std::byte* memory) {
  auto& alone = *reinterpret_cast<AloneShared<AttentionShared<Config>>*>(memory);
  AttentionShared<Config>& shared = alone.body;
  // The body begins with a fence and a barrier, so its tiles may lie where this was.
  static_assert(sizeof(VarlenSorting) <= sizeof(shared.keys));
  auto& sorting = *reinterpret_cast<VarlenSorting*>(shared.keys);
  compute_alone<Config::kThreads / 32>(p.endpoint, alone.begin, [&](const LaunchBegin& begin) {
    if (!varlen_accept(p, begin.epoch, sorting)) return;
    AttentionSlot* slots = p.scratch->slots(static_cast<std::int32_t>(blockIdx.x), p.lengths.sequences);
    varlen_fill(p.lengths, AttentionTaskList{p.heads, p.group, 2 * Config::kHeadDim * 2}, slots, sorting);
    attention_body(VarlenFeed<Config>(p, begin.epoch, slots), shared);
  });
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void varlen_kernel(const __grid_constant__ VarlenParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  if (!is_rehearsal(p.endpoint)) varlen_cta<Config>(p, memory);
}

}  // namespace mkernel::kernels

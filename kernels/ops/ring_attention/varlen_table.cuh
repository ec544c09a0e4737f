// The list of tasks of sequences of different lengths: every CTA makes it for itself from the lengths, so
// that no CTA waits for another.
#pragma once

#include <cstdint>

#include "kernels/cuda/sync/warp_sum.cuh"
#include "kernels/plan/attention_sequences.h"

namespace mkernel::kernels {

/// Shared memory that is needed meanwhile.
struct VarlenSorting {
  std::int32_t first_bad;
  std::int32_t keys[kMostSequences];   ///< by number of the sequence
  std::int32_t tasks[kMostSequences];  ///< by slot
};

/// All threads of the CTA: the number of the first bad entry, or one that no entry has.
__device__ __forceinline__ std::int32_t varlen_first_bad(const AttentionLengths& lengths,
                                                         VarlenSorting& sorting) {
  const std::int32_t entries = attention_length_entries(lengths);
  if (threadIdx.x == 0) sorting.first_bad = entries;
  __syncthreads();
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < entries;
       i += static_cast<std::int32_t>(blockDim.x))
    if (check_attention_length(lengths, i).number >= 0) atomicMin(&sorting.first_bad, i);
  __syncthreads();
  return sorting.first_bad;
}

/// All threads of the CTA: fills `slots`, the one behind the last sequence's too, from lengths that are good.
/// A sequence counts those that come before it; of many sequences this takes some microseconds. `heads` of
/// queries, of which `group` share keys; `kv_bytes`: a key and a value of one head.
__device__ __forceinline__ void varlen_fill(const AttentionLengths& lengths, std::int32_t heads,
                                            std::int32_t group, std::int32_t kv_bytes, AttentionSlot* slots,
                                            VarlenSorting& sorting) {
  const std::int32_t count = lengths.sequences;
  const auto thread = static_cast<std::int32_t>(threadIdx.x), threads = static_cast<std::int32_t>(blockDim.x);
  for (std::int32_t i = thread; i < count; i += threads)
    sorting.keys[i] = attention_sequence(lengths, i).keys;
  __syncthreads();
  for (std::int32_t i = thread; i < count; i += threads) {
    const std::int32_t keys = sorting.keys[i];
    std::int32_t at = 0;
#pragma unroll 4
    for (std::int32_t j = 0; j < count; ++j)
      at += attention_comes_before(j, sorting.keys[j], i, keys) ? 1 : 0;
    const AttentionSequence sequence = attention_sequence(lengths, i);
    const std::int64_t bytes = std::int64_t{max(keys, 1)} * kv_bytes;
    slots[at].sequence = sequence;
    slots[at].section_heads = attention_section_heads(heads / group, group, bytes);
    sorting.tasks[at] = attention_query_tiles(sequence.queries) * heads;
  }
  __syncthreads();
  if (thread < 32) {
    std::int32_t before = 0;
    for (std::int32_t first = 0; first < count; first += 32) {
      const std::int32_t slot = first + thread, tasks = slot < count ? sorting.tasks[slot] : 0;
      const std::int32_t sum = warp_sum_up_to(tasks);
      if (slot < count) slots[slot].tasks_before = before + sum - tasks;
      before += __shfl_sync(~0U, sum, 31);
    }
    if (thread == 0) slots[count].tasks_before = before;
  }
  __syncthreads();
}

}  // namespace mkernel::kernels

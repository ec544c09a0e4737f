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
  std::int32_t sizes[kMostSequences];  ///< by number of the sequence
  std::int32_t tasks[kMostSequences];  ///< by slot
};

/// All threads of the CTA: the number of the first of `entries` that `check` says is bad, or one that no
/// entry has.
template <class Check>
__device__ __forceinline__ std::int32_t varlen_first_bad(std::int32_t entries, const Check& check,
                                                         VarlenSorting& sorting) {
  if (threadIdx.x == 0) sorting.first_bad = entries;
  __syncthreads();
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < entries;
       i += static_cast<std::int32_t>(blockDim.x))
    if (check(i).number >= 0) atomicMin(&sorting.first_bad, i);
  __syncthreads();
  return sorting.first_bad;
}

/// All threads of the CTA: whether no entry is bad. Of a launch that is refused CTA 0 says why, and it lets
/// the tasks of the next launch be counted from zero on. `scratch`: a VarlenScratch.
template <class Scratch, class Check>
__device__ __forceinline__ bool varlen_accept(Scratch& scratch, std::int32_t entries, const Check& check,
                                              std::uint64_t epoch, VarlenSorting& sorting) {
  const std::int32_t first_bad = varlen_first_bad(entries, check, sorting);
  const bool good = first_bad == entries;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    scratch.next_task[(epoch + 1) & 1] = 0;
    if (!good) scratch.refusal = {epoch + 1, check(first_bad)};
  }
  return good;
}

/// The same of the lengths of `p`: VarlenParameters, or those of a backward pass.
template <class Parameters>
__device__ __forceinline__ bool varlen_accept(const Parameters& p, std::uint64_t epoch,
                                              VarlenSorting& sorting) {
  const auto check = [&](std::int32_t number) { return check_attention_length(p.lengths, number); };
  return varlen_accept(*p.scratch, attention_length_entries(p.lengths), check, epoch, sorting);
}

/// All threads of the CTA: fills `slots`, the one behind the last sequence's too, from lengths that are good.
/// A sequence counts those that come before it; of many sequences this takes some microseconds. `list`:
/// AttentionTaskList, or that of a backward pass.
template <class List>
__device__ __forceinline__ void varlen_fill(const AttentionLengths& lengths, const List& list,
                                            typename List::Slot* slots, VarlenSorting& sorting) {
  const std::int32_t count = lengths.sequences;
  const auto thread = static_cast<std::int32_t>(threadIdx.x), threads = static_cast<std::int32_t>(blockDim.x);
  for (std::int32_t i = thread; i < count; i += threads)
    sorting.sizes[i] = List::size(attention_sequence(lengths, i));
  __syncthreads();
  for (std::int32_t i = thread; i < count; i += threads) {
    const std::int32_t size = sorting.sizes[i];
    std::int32_t at = 0;
#pragma unroll 4
    for (std::int32_t j = 0; j < count; ++j)
      at += attention_comes_before(j, sorting.sizes[j], i, size) ? 1 : 0;
    const AttentionSequence sequence = attention_sequence(lengths, i);
    list.describe(sequence, i, slots[at]);
    sorting.tasks[at] = list.tasks(sequence);
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

// The list of tasks of sequences of different lengths as the host makes it: what every CTA makes for itself
// (attention/varlen_table.cuh).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/plan/attention_sequences.h"

namespace mkernel::kernels {

/// Of lengths that are good, with a slot behind the last one. `list`: AttentionTaskList, or that of a
/// backward pass.
template <class List>
std::vector<typename List::Slot> attention_slots(const List& list, const AttentionLengths& lengths) {
  std::vector<AttentionSequence> sequences;
  std::vector<std::int32_t> order;
  for (std::int32_t i = 0; i < lengths.sequences; ++i) {
    sequences.push_back(attention_sequence(lengths, i));
    order.push_back(i);
  }
  const auto size = [&](std::int32_t i) { return List::size(sequences[static_cast<std::size_t>(i)]); };
  std::sort(order.begin(), order.end(),
            [&](std::int32_t a, std::int32_t b) { return attention_comes_before(a, size(a), b, size(b)); });
  std::vector<typename List::Slot> slots(1);
  for (const std::int32_t i : order) {
    const AttentionSequence& sequence = sequences[static_cast<std::size_t>(i)];
    list.describe(sequence, i, slots.back());
    const std::int32_t behind = slots.back().tasks_before + list.tasks(sequence);
    slots.emplace_back().tasks_before = behind;
  }
  return slots;
}

}  // namespace mkernel::kernels

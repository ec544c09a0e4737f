// The order in which an owner's tiles of the first and of the second product of its experts are handed out to
// CTAs (or clusters). Pure functions, the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/plan/expert_blocks.h"
#include "kernels/plan/expert_sections.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// One counter hands out tasks 0 .. tasks() - 1. Each product takes the sections in their order
/// (expert_sections.h), within a section one column of tiles after the other, and within a column all blocks:
/// a panel of weights is read from memory once and lies in L2 for all blocks. The two products are merged:
/// the second product of a section follows once its first product has been handed out and `lead` more tasks
/// of the first product have. With `lead` as many tasks as run at a time, those that a second product waits
/// for are about over when it begins. At the end, when there are no more tasks of the first product, the
/// others follow without a lead.
///
/// So a task of the second product comes after all tasks of the first product on its section, whatever the
/// lead and the order of sections. Of the tasks that are handed out and not over, take the lowest: it waits
/// for rows, which wait for no task, or for lower tasks, which are over. So somebody always computes, with
/// any number of CTAs, if each works on its tasks in the order in which it took them and finishes one without
/// waiting for the next. (Two counters, one per product, would need this rule checked at every step; one
/// needs no check.)
struct ExpertTasks {
  struct Task {
    bool second = false;      ///< of the two products
    std::int32_t block = 0;   ///< of the owner's
    std::int32_t expert = 0;  ///< local
    std::int32_t column = 0;  ///< of tiles
    bool shared = false;      ///< of the shared expert (LayerTasks)
    // Its section:
    std::int32_t first_block = 0;
    std::int32_t blocks = 0;
  };

  OwnedExperts owned;
  ExpertSections sections;    ///< of all its blocks
  std::int32_t columns1 = 1;  ///< of tiles, of the first product
  std::int32_t columns2 = 0;  ///< of the second one; 0: there is only one product
  std::int32_t lead = 0;
  /// [sections + 1]: followers(step) for every step. May be null without a second product.
  const std::int32_t* followers_at = nullptr;

  MK_HOST_DEVICE std::int32_t tasks() const { return (columns1 + columns2) * owned.all_blocks(); }

  /// How many sections have their second product handed out before the first product of section `step` begins
  /// (0 .. sections; that last step has no first product). A binary search; the kernel keeps the results.
  MK_HOST_DEVICE std::int32_t followers(std::int32_t step) const {
    if (step == sections.count) return step;
    const std::int32_t ended = columns1 * sections.blocks_before[step] - lead;
    // columns1 * blocks_before[low] <= ended, or low is 0; not so for high.
    std::int32_t low = 0, high = step + 1;
    while (high - low > 1) {
      const std::int32_t middle = (low + high) / 2;
      (columns1 * sections.blocks_before[middle] <= ended ? low : high) = middle;
    }
    return low;
  }

  /// 0 <= `index` < tasks().
  MK_HOST_DEVICE Task task(std::int32_t index) const {
    std::int32_t step = 0, high = sections.count + 1;  // begin(step) <= index < begin(high)
    while (high - step > 1) {
      const std::int32_t middle = (step + high) / 2;
      (begin(middle) <= index ? step : high) = middle;
    }
    index -= begin(step);
    if (columns2 == 0) return place(false, step, index);
    const std::int32_t first = step == 0 ? 0 : followers_at[step - 1], last = followers_at[step];
    const std::int32_t before = sections.blocks_before[first];
    const std::int32_t second = columns2 * (sections.blocks_before[last] - before);
    if (index >= second) return place(false, step, index - second);
    std::int32_t section = first, end = last;  // columns2 * (blocks before - before) <= index, not so for end
    while (end - section > 1) {
      const std::int32_t middle = (section + end) / 2;
      (columns2 * (sections.blocks_before[middle] - before) <= index ? section : end) = middle;
    }
    return place(true, section, index - columns2 * (sections.blocks_before[section] - before));
  }

 private:
  /// First task of a step: the second products that begin in it, then the first product of its section.
  MK_HOST_DEVICE std::int32_t begin(std::int32_t step) const {
    const std::int32_t first = columns1 * sections.blocks_before[step];
    if (columns2 == 0 || step == 0) return first;
    return first + columns2 * sections.blocks_before[followers_at[step - 1]];
  }
  MK_HOST_DEVICE Task place(bool second, std::int32_t section, std::int32_t inside) const {
    const std::int32_t blocks = sections.blocks(section), first = sections.first_block[section];
    const std::int32_t column = inside / blocks;
    return {second, first + inside - column * blocks, sections.experts[section], column, false, first,
            blocks};
  }
};

}  // namespace mkernel::kernels

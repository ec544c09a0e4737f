// The order in which an owner's tiles of the first and of the second product of its experts are handed out to
// CTAs (or clusters). Pure functions, the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/plan/expert_blocks.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// One counter hands out tasks 0 .. tasks() - 1. Each product takes the experts in local order, within an
/// expert one column of tiles after the other, and within a column all blocks: a panel of weights is read
/// from memory once and lies in L2 for all blocks. The two products are merged: the second product of an
/// expert follows once its first product has been handed out and `lead` more tasks of the first product have.
/// With `lead` as many tasks as run at a time, those that a second product waits for are about over when it
/// begins. At the end, when there are no more tasks of the first product, the others follow without a lead.
///
/// So a task of the second product comes after all tasks of the first product on its expert, whatever the
/// lead. Of the tasks that are handed out and not over, take the lowest: it waits for rows, which wait for
/// no task, or for lower tasks, which are over. So somebody always computes, with any number of CTAs, if each
/// works on its tasks in the order in which it took them and finishes one without waiting for the next.
/// (Two counters, one per product, would need this rule checked at every step; one needs no check.)
struct ExpertTasks {
  struct Task {
    bool second = false;      ///< of the two products
    std::int32_t block = 0;   ///< of the owner's
    std::int32_t expert = 0;  ///< local
    std::int32_t column = 0;  ///< of tiles
    bool shared = false;      ///< of the shared expert (LayerTasks)
  };

  OwnedExperts owned;
  std::int32_t columns1 = 1;  ///< of tiles, of the first product
  std::int32_t columns2 = 0;  ///< of the second one; 0: there is only one product
  std::int32_t lead = 0;
  /// [experts + 1]: followers(step) for every step. May be null without a second product.
  const std::int32_t* followers_at = nullptr;

  MK_HOST_DEVICE std::int32_t tasks() const { return (columns1 + columns2) * owned.all_blocks(); }

  /// How many experts have their second product handed out before the first product of expert `step` begins
  /// (0 .. experts; that last step has no first product). A binary search; the kernel keeps the results.
  MK_HOST_DEVICE std::int32_t followers(std::int32_t step) const {
    if (step == owned.experts) return step;
    const std::int32_t ended = columns1 * owned.first_block(step) - lead;
    std::int32_t low = 0,
                 high = step + 1;  // columns1 * first_block(low) <= ended, or low is 0; not so for high
    while (high - low > 1) {
      const std::int32_t middle = (low + high) / 2;
      (columns1 * owned.first_block(middle) <= ended ? low : high) = middle;
    }
    return low;
  }

  /// 0 <= `index` < tasks().
  MK_HOST_DEVICE Task task(std::int32_t index) const {
    std::int32_t step = 0, high = owned.experts + 1;  // begin(step) <= index < begin(high)
    while (high - step > 1) {
      const std::int32_t middle = (step + high) / 2;
      (begin(middle) <= index ? step : high) = middle;
    }
    index -= begin(step);
    const std::int32_t first = columns2 == 0 || step == 0 ? 0 : followers_at[step - 1];
    const std::int32_t second =
        columns2 == 0 ? 0 : columns2 * (owned.first_block(followers_at[step]) - owned.first_block(first));
    if (index >= second) return place(false, step, index - second);
    const std::int32_t before = columns2 * owned.first_block(first) + index;
    const std::int32_t expert = owned.expert_of(before / columns2);
    return place(true, expert, before - columns2 * owned.first_block(expert));
  }

 private:
  /// First task of a step: the second products that begin in it, then the first product of its expert.
  MK_HOST_DEVICE std::int32_t begin(std::int32_t step) const {
    const std::int32_t first = columns1 * owned.first_block(step);
    return columns2 == 0 || step == 0 ? first : first + columns2 * owned.first_block(followers_at[step - 1]);
  }
  MK_HOST_DEVICE Task place(bool second, std::int32_t expert, std::int32_t inside) const {
    const std::int32_t blocks = owned.blocks(expert), column = inside / blocks;
    return {second, owned.first_block(expert) + inside - column * blocks, expert, column};
  }
};

}  // namespace mkernel::kernels

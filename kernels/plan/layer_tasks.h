// The order in which all tiles of a rank are handed out: those of its experts, and of the shared expert,
// which every token of the rank goes through. Pure functions, the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/plan/expert_tasks.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Tiles of the shared expert's two products. Its rows are the rank's own tokens, in blocks of their own.
struct SharedExpertTiles {
  std::int32_t blocks = 0;    ///< 0: there is no shared expert, or no token
  std::int32_t columns1 = 0;  ///< of tiles, of the first product
  std::int32_t columns2 = 0;  ///< of the second one

  MK_HOST_DEVICE std::int32_t first() const { return blocks * columns1; }
  MK_HOST_DEVICE std::int32_t second() const { return blocks * columns2; }
};

/// One counter hands out tasks 0 .. tasks() - 1. The shared expert is in the order of ExpertTasks like an
/// expert before all others: its first product comes first, and its second one follows when `lead` more tasks
/// have been handed out. Its rows do not travel. So its first product is what there is to do while ranks
/// exchange their counts and the first rows travel, and needs no table: `early()` tasks can be taken before
/// there is one. Its second product comes late enough to find its inputs, and early enough to find them in
/// the L2.
///
/// Why nobody is stuck: early tasks wait for nothing, and the second product of the shared expert for them
/// alone. All other tasks are as in ExpertTasks.
///
/// A launch that is refused has no tasks but the early ones. None of them is of a second product, so that no
/// block is left with some of its last tiles counted.
struct LayerTasks {
  SharedExpertTiles shared;
  ExpertTasks experts;

  MK_HOST_DEVICE std::int32_t early() const { return shared.first(); }
  MK_HOST_DEVICE std::int32_t tasks() const { return early() + shared.second() + experts.tasks(); }

  /// 0 <= `index` < tasks(). Before the table is there: `index` < early().
  MK_HOST_DEVICE ExpertTasks::Task task(std::int32_t index) const {
    if (index < early()) return place(false, index);
    index -= early();
    const std::int32_t all = experts.tasks(), before = experts.lead < all ? experts.lead : all;
    if (index < before) return experts.task(index);
    const std::int32_t second = index - before;
    return second < shared.second() ? place(true, second) : experts.task(index - shared.second());
  }

 private:
  /// Columns outside, blocks inside, as the experts have them.
  MK_HOST_DEVICE ExpertTasks::Task place(bool second, std::int32_t inside) const {
    const std::int32_t column = inside / shared.blocks;
    return {second, inside - column * shared.blocks, 0, column, true, 0, shared.blocks};
  }
};

}  // namespace mkernel::kernels

// The matrices that this rank's tiles are stored into: its slots at the reducers. Host side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/gemm/sm90_maps.h"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/plan/tile_reduce_plan.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// [half][turn]: all rows of an owner; behind these [half][turn]: its head (TileReducePlan::head_rows()), in
/// one box. `slot(half, turn)` is where the slot begins. A map has at least one row; the kernel keeps clear
/// of that of an owner without rows, or without a head.
template <class Slot>
std::vector<MatrixView> slot_views(const TileReducePlan& plan, const GemmShape& shape, const Slot& slot) {
  const std::int32_t turns = plan.tiles.turns();
  std::vector<MatrixView> views;
  for (const bool head : {false, true}) {
    for (std::int32_t i = 0; i < 2 * turns; ++i) {
      const std::int32_t turn = i % turns;
      const std::int32_t owner = plan.owners[static_cast<std::size_t>(turn)];
      const std::int64_t rows =
          std::max<std::int64_t>(1, head ? plan.head_rows(owner) : plan.reduce.rows_of(owner));
      views.push_back(
          sm90_c_view(shape.dtype, slot(static_cast<std::uint64_t>(i / turns), turn), rows, shape.n));
      if (head) views.back().box_rows = static_cast<std::int32_t>(rows);
    }
  }
  return views;
}

}  // namespace mkernel::kernels

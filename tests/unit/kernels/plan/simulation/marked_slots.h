// An all-reduce of few rows as step machines: every rank stores its tiles into marked slots of all ranks, and
// sums all rows for itself (plan/push_reduce_plan.h). What kernels/cuda/reduce/marked_slots.cuh does, without
// the data; any warp sums here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/kernels/plan/simulation/marks.h"
#include "tests/unit/kernels/plan/simulation/tile_reduce.h"

namespace mkernel::test {

/// A piece is the row of a unit.
class MarkedSlotsWorld final : public TileReduceWorld {
 public:
  MarkedSlotsWorld(const GemmShape& shape, const kernels::Topology& topology,
                   const std::vector<kernels::TileReducePlan>& plans, const Warps& warps,
                   const Settings& settings);

 protected:
  Task spare_warp(std::int32_t index, std::uint64_t epoch, const SpareWarp& warp) override;
  Task store_tile(std::int32_t index, std::uint64_t epoch, std::int32_t number,
                  std::int32_t in_cluster) override;
  std::string check_counts() override;

 private:
  /// Of the slot of `source` at rank `index`; `row`: in [rows, columns].
  MarkedData::Piece piece(std::int32_t index, std::uint64_t epoch, std::int32_t source, const Span& row);
  Stamp tile_stamp(std::int32_t index, std::uint64_t epoch, std::int32_t source, const Span& row) {
    return stamp(epoch, Content::kPartialTile, source,
                 rank(index).workspace.cells(static_cast<std::int64_t>(row.at)));
  }
  std::vector<Span> rows_of_tile(std::int32_t index, const kernels::TileReducePlan::Tile& tile,
                                 const kernels::TileReducePlan::Tile::Part& part) const;

  MarkedData slots_{scheduler_, settings_};
};

}  // namespace mkernel::test

// The roles of MarkedSlotsWorld.
#include "tests/unit/kernels/plan/simulation/marked_slots.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace mkernel::test {

MarkedSlotsWorld::MarkedSlotsWorld(const GemmShape& shape, const kernels::Topology& topology,
                                   const std::vector<kernels::TileReducePlan>& plans, const Warps& warps,
                                   const Settings& settings)
    : TileReduceWorld(plans, shape, topology, warps, settings, 0) {
  for (const auto& plan : plans_)
    add_rank_of(plan, plan.reduce.marked_bytes(), kernels::kLentAlignment, plan.reduce.rows);
}

MarkedData::Piece MarkedSlotsWorld::piece(std::int32_t index, std::uint64_t epoch, std::int32_t source,
                                          const Span& row) {
  const std::uint64_t half = has(Fault::kOneHalf) ? 0 : epoch & 1;
  return slots_.piece(index, rank(index).workspace,
                      {plan(index).reduce.marked_offset(half, source) + row.at, row.bytes});
}

// ---- compute ----

std::vector<Span> MarkedSlotsWorld::rows_of_tile(std::int32_t index,
                                                 const kernels::TileReducePlan::Tile& tile,
                                                 const kernels::TileReducePlan::Tile::Part& part) const {
  const std::int64_t column = std::int64_t{tile.column} * plan(index).tile.columns;
  const std::int64_t width = std::min(columns_ - column, std::int64_t{plan(index).tile.columns});
  std::vector<Span> rows;
  for (std::int64_t row = part.begin; row < part.end; ++row)
    rows.push_back(
        {static_cast<std::uint64_t>(row * columns_ + column) * 2, static_cast<std::uint64_t>(width) * 2});
  return rows;
}

Task MarkedSlotsWorld::store_tile(std::int32_t index, std::uint64_t epoch, std::int32_t number,
                                  std::int32_t in_cluster) {
  const kernels::TileReducePlan::Tile tile = plan(index).tile_at(number, in_cluster);
  for (const auto& part : tile.parts) {
    co_await scheduler_.step();
    const std::int32_t to = owner(index, part.turn);
    for (const Span& row : rows_of_tile(index, tile, part))
      slots_.begin_store(index, piece(to, epoch, index, row));
  }
  for (const auto& part : tile.parts) {
    const std::int32_t to = owner(index, part.turn);
    for (const Span& row : rows_of_tile(index, tile, part)) {
      co_await scheduler_.step();
      slots_.end_store(piece(to, epoch, index, row), tile_stamp(to, epoch, index, row));
    }
  }
}

// ---- sums ----

Task MarkedSlotsWorld::spare_warp(std::int32_t index, std::uint64_t epoch, const SpareWarp&) {
  Memory& memory = rank(index).workspace;
  MarkedData::Marks marks(slots_);
  UnitClaims claims(counts(index).claimed, epoch, static_cast<std::uint32_t>(plan(index).units.units()),
                    spare_warps(index));
  bool gave_up = false;
  co_await scheduler_.step();  // others claim in between
  while (const auto number = gave_up ? std::nullopt : claims.take()) {
    co_await scheduler_.step();
    const SumUnit unit = unit_at(index, *number);
    std::vector<Span> rows;
    for_each_row(index, unit, [&](const Span& row) { rows.push_back(row); });
    bool right = true;
    for (std::int32_t source = 0; source < ranks_per_node() && !gave_up; ++source) {
      for (const Span& row : rows) {
        const MarkedData::Piece here = piece(index, epoch, source, row);
        gave_up = !co_await scheduler_.wait(*here.come, 1);
        if (gave_up) break;
        right &= holds(index, epoch, memory, here.at, tile_stamp(index, epoch, source, row), "a tile");
        co_await scheduler_.step();
        right &= holds(index, epoch, memory, here.at, tile_stamp(index, epoch, source, row), "a tile");
        marks.begin(here);
      }
    }
    if (gave_up) continue;
    for (const Span& row : rows) write_result(index, epoch, row, right);
  }
  co_await scheduler_.step();
  marks.finish();
}

// ---- the end ----

std::string MarkedSlotsWorld::check_counts() {
  for (std::int32_t index = 0; index < plan(0).reduce.world; ++index) {
    const auto units = static_cast<std::uint64_t>(plan(index).units.units());
    if (counts(index).claimed != settings_.launches * (units + spare_warps(index)))
      return "claims of rank " + std::to_string(index) + " end at " + std::to_string(counts(index).claimed);
  }
  return slots_.check();
}

}  // namespace mkernel::test

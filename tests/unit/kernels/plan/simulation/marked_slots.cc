// The roles of TileReduceWorld where slots are marked: what kernels/cuda/reduce/marked_slots.cuh does,
// without the data. A piece is the row of a unit.
#include <cstdint>
#include <optional>
#include <vector>

#include "tests/unit/kernels/plan/simulation/tile_reduce.h"

namespace mkernel::test {

MarkedData::Piece TileReduceWorld::piece(std::int32_t index, std::uint64_t epoch, std::int32_t source,
                                         const Span& row) {
  const std::uint64_t half = has(Fault::kOneHalf) ? 0 : epoch & 1;
  return slots_.piece(index, rank(index).workspace,
                      {plan(index).reduce.marked_offset(half, source) + row.at, row.bytes});
}

Stamp TileReduceWorld::tile_stamp(std::int32_t index, std::uint64_t epoch, std::int32_t source,
                                  const Span& row) {
  const auto first_row = static_cast<std::uint64_t>(plan(index).reduce.first_row(index));
  const std::uint64_t at = first_row * static_cast<std::uint64_t>(columns_) * 2 + row.at;
  return stamp(epoch, Content::kPartialTile, source,
               rank(index).workspace.cells(static_cast<std::int64_t>(at)));
}

// ---- compute ----

Task TileReduceWorld::store_marked_tile(std::int32_t index, std::uint64_t epoch, std::int32_t number,
                                        std::int32_t in_cluster) {
  const kernels::TileReducePlan::Tile tile = plan(index).tile_at(number, in_cluster);
  for (const Part& part : tile.parts) {
    co_await scheduler_.step();
    const std::int32_t to = owner(index, part.turn);
    for (const Span& row : rows_of_part(index, tile, part))
      slots_.begin_store(index, piece(to, epoch, index, row));
  }
  for (const Part& part : tile.parts) {
    const std::int32_t to = owner(index, part.turn);
    for (const Span& row : rows_of_part(index, tile, part)) {
      co_await scheduler_.step();
      slots_.end_store(piece(to, epoch, index, row), tile_stamp(to, epoch, index, row));
    }
  }
}

// ---- sums ----

/// A unit of own rows from the slots of all sources, as soon as they are there. False: it gave up. The marks
/// may be written at any time until the warp has made its last sum.
Task TileReduceWorld::sum_marked_unit(std::int32_t index, std::uint64_t epoch, const SumUnit& unit,
                                      MarkedData::Marks& marks, MarkedSum& sum) {
  Memory& memory = rank(index).workspace;
  std::vector<Span> rows;
  for_each_row(index, unit, [&](const Span& row) { rows.push_back(row); });
  for (std::int32_t source = 0; source < ranks_per_node(); ++source) {
    for (const Span& row : rows) {
      const MarkedData::Piece here = piece(index, epoch, source, row);
      if (!has(Fault::kMarkedUnwaited) && !co_await scheduler_.wait(*here.come, 1)) co_return;
      sum.right &= holds(index, epoch, memory, here.at, tile_stamp(index, epoch, source, row), "a tile");
      co_await scheduler_.step();
      sum.right &= holds(index, epoch, memory, here.at, tile_stamp(index, epoch, source, row), "a tile");
      marks.begin(here);
    }
  }
  sum.made = true;
}

Task TileReduceWorld::sum_marked_units(std::int32_t index, std::uint64_t epoch, SumOutput& output) {
  MarkedData::Marks marks(slots_);
  UnitClaims claims(counts(index).claimed, epoch, static_cast<std::uint32_t>(plan(index).units.units()),
                    static_cast<std::uint32_t>(multiplying_warps(index)));
  MarkedSum sum{.made = true};
  co_await scheduler_.step();  // others claim in between
  while (const auto number = sum.made ? claims.take() : std::nullopt) {
    co_await scheduler_.step();
    const SumUnit unit = unit_at(index, *number);
    if (unit.place.row >= rows_of(index, unit.turn)) continue;
    sum = {};
    co_await sum_marked_unit(index, epoch, unit, marks, sum);
    if (sum.made) store_own(index, epoch, unit, sum.right, output);
  }
  co_await scheduler_.step();
  marks.finish();
}

}  // namespace mkernel::test

// The roles of TileReduceWorld, in the order of kernels/cuda/reduce/tile_reduce.cuh and sum_slots.cuh.
#include "tests/unit/kernels/plan/simulation/tile_reduce.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/plan/tile_assignment.h"

namespace mkernel::test {

void TileReduceWorld::add_rank_of(const kernels::TileReducePlan& plan, std::uint64_t word_bytes,
                                  std::uint64_t data_bytes, std::int64_t c_rows) {
  const std::uint64_t cell = columns_ % 8 == 0 ? 16 : 2;
  add_rank(word_bytes, data_bytes, static_cast<std::uint64_t>(c_rows * columns_) * 2, cell);
  counts_.emplace_back();
  counts_.back().staged.resize(static_cast<std::size_t>(plan.units.others * plan.most_chunks()));
  counts_.back().finished.resize(static_cast<std::size_t>(plan.most_chunks()));
}

void TileReduceWorld::begin_launch(std::int32_t index, std::uint64_t epoch) {
  for (std::int32_t cta = 0; cta < ctas(index); ++cta) {
    if (cta < plan(index).reduce_ctas) {
      scheduler_.spawn(index, "summing CTA", reducing_cta(index, epoch, cta));
    } else {
      scheduler_.spawn(index, "computing CTA", computing_cta(index, epoch, cta));
    }
  }
}

// ---- compute ----

Task TileReduceWorld::computing_cta(std::int32_t index, std::uint64_t epoch, std::int32_t cta) {
  Cta shared;
  const auto& mine = plan(index);
  const std::int32_t cluster = (cta - mine.reduce_ctas) / mine.tile.cluster;
  const std::int32_t clusters = mine.compute_ctas / mine.tile.cluster;
  const std::int32_t tiles = kernels::TileAssignment::share(mine.cluster_tiles(), cluster, clusters);
  scheduler_.spawn(index, "multiply", multiply(index, shared, tiles));
  scheduler_.spawn(index, "store", store(index, epoch, shared, cta, tiles));
  for (std::int32_t warp = 0; warp < warps_.multiplying; ++warp)
    scheduler_.spawn(index, "multiplying warp", multiplying_warp(index, epoch, shared, 4 + warp, tiles));
  co_await scheduler_.meet(shared.ended, static_cast<std::uint64_t>(2 + warps_.multiplying));
  end_cta(index);
}

/// A tile is multiplied while the one before it is stored.
Task TileReduceWorld::multiply(std::int32_t, Cta& cta, std::int32_t tiles) {
  for (std::int32_t i = 0; i < tiles; ++i) {
    if (i > 0) co_await scheduler_.meet(cta.stored, static_cast<std::uint64_t>(i - 1));
    co_await scheduler_.step();
    scheduler_.add(cta.multiplied, 1);
  }
  scheduler_.add(cta.ended, 1);
}

Task TileReduceWorld::store(std::int32_t index, std::uint64_t epoch, Cta& shared, std::int32_t cta,
                            std::int32_t tiles) {
  const auto& mine = plan(index);
  const std::int32_t cluster = (cta - mine.reduce_ctas) / mine.tile.cluster;
  const std::int32_t clusters = mine.compute_ctas / mine.tile.cluster;
  for (std::int32_t i = 0; i < tiles; ++i) {
    co_await scheduler_.meet(shared.multiplied, static_cast<std::uint64_t>(i + 1));
    const std::int32_t number = cluster + i * clusters, in_cluster = cta % mine.tile.cluster;
    if (mine.reduce.marked) {
      co_await store_marked_tile(index, epoch, number, in_cluster);
    } else {
      co_await store_tile(index, epoch, number, in_cluster);
    }
    scheduler_.add(shared.stored, 1);
  }
  scheduler_.add(shared.ended, 1);
}

Task TileReduceWorld::store_tile(std::int32_t index, std::uint64_t epoch, std::int32_t number,
                                 std::int32_t in_cluster) {
  const kernels::TileReducePlan::Tile tile = plan(index).tile_at(number, in_cluster);
  const auto signal = [&](const Part& part) {
    Word& word = ready(reducer_of(index, part.turn), part.turn / plan(index).reduce.sources, local_of(index),
                       plan(index).ready_word(part.begin, tile.column));
    scheduler_.set(word, kernels::PushReducePlan::count(epoch));
  };
  if (has(Fault::kCountFirst)) std::for_each(tile.parts.begin(), tile.parts.end(), signal);
  for (const Part& part : tile.parts) {
    co_await scheduler_.step();
    begin_part(index, epoch, tile, part);
  }
  for (const Part& part : tile.parts) {
    co_await scheduler_.step();
    end_part(index, epoch, tile, part);
  }
  for (const Part& part : tile.parts) {
    co_await scheduler_.step();
    signal(part);
  }
}

/// Of a part of a tile, where they lie in [rows of the owner, columns].
std::vector<Span> TileReduceWorld::rows_of_part(std::int32_t index, const kernels::TileReducePlan::Tile& tile,
                                                const Part& part) const {
  const std::int64_t column = std::int64_t{tile.column} * plan(index).tile.columns;
  const std::int64_t width = std::min(columns_ - column, std::int64_t{plan(index).tile.columns});
  std::vector<Span> rows;
  for (std::int64_t row = part.begin; row < part.end; ++row)
    rows.push_back(
        {static_cast<std::uint64_t>(row * columns_ + column) * 2, static_cast<std::uint64_t>(width) * 2});
  return rows;
}

/// visit(element of the owner's, where its row lies at the owner's reducer) for the rows of a part of a tile.
template <class Visit>
void TileReduceWorld::for_each_row(std::int32_t index, std::uint64_t epoch,
                                   const kernels::TileReducePlan::Tile& tile, const Part& part,
                                   const Visit& visit) {
  const std::int32_t node_turn = part.turn / plan(index).reduce.sources;
  const std::uint64_t slot_at = slot(reducer_of(index, part.turn), epoch, node_turn, local_of(index));
  for (const Span& row : rows_of_part(index, tile, part))
    visit(static_cast<std::int64_t>(row.at / 2), Span{slot_at + row.at, row.bytes});
}

void TileReduceWorld::begin_part(std::int32_t index, std::uint64_t epoch,
                                 const kernels::TileReducePlan::Tile& tile, const Part& part) {
  Memory& memory = rank(reducer_of(index, part.turn)).workspace;
  for_each_row(index, epoch, tile, part,
               [&](std::int64_t, const Span& there) { begin_write(memory, there); });
}

/// What is written is the tile's own rows: a part that is taken from the wrong ones is seen by who sums it.
void TileReduceWorld::end_part(std::int32_t index, std::uint64_t epoch,
                               const kernels::TileReducePlan::Tile& tile, const Part& part) {
  Memory& memory = rank(reducer_of(index, part.turn)).workspace;
  const std::int64_t first_row = plan(index).reduce.first_row(owner(index, part.turn));
  for_each_row(index, epoch, tile, part, [&](std::int64_t element, const Span& there) {
    const std::int64_t row = first_row + element / columns_;
    const bool right = row >= tile.first_row && row < tile.first_row + plan(index).tile.rows;
    memory.end_write(
        there, stamp(epoch, Content::kPartialTile, index, memory.cells((first_row * columns_ + element) * 2)),
        right);
  });
}

Task TileReduceWorld::multiplying_warp(std::int32_t index, std::uint64_t epoch, Cta& cta, std::int32_t number,
                                       std::int32_t tiles) {
  co_await scheduler_.meet(cta.multiplied, static_cast<std::uint64_t>(tiles));
  const SpareWarp warp{number, true};
  co_await spare_warp(index, epoch, warp);
  scheduler_.add(cta.ended, 1);
}

// ---- intra_comm, inter_send ----

Task TileReduceWorld::reducing_cta(std::int32_t index, std::uint64_t epoch, std::int32_t cta) {
  Cta shared;
  const bool first = cta == 0;
  const std::int32_t warps = warps_of_cta(index) - (first ? 1 : 0);  // of CTA 0 one is the poller
  for (std::int32_t warp = 0; warp < warps; ++warp)
    scheduler_.spawn(index, "summing warp", reducing_warp(index, epoch, shared, first, warp));
  co_await scheduler_.meet(shared.ended, static_cast<std::uint64_t>(warps));
  if (first) {
    cta_over(index);
  } else {
    end_cta(index);
  }
}

Task TileReduceWorld::reducing_warp(std::int32_t index, std::uint64_t epoch, Cta& shared, bool first,
                                    std::int32_t number) {
  const std::int32_t spare = warps_of_cta(index) - (first ? reserved(index) : 0);
  if (first && number == 0) co_await exchange_empty(index, epoch);
  if (number < spare) {
    const SpareWarp warp{number, false};
    co_await spare_warp(index, epoch, warp);
  } else {
    co_await send(index, epoch, number - spare);
  }
  if (first) count_out(index);
  scheduler_.add(shared.ended, 1);
}

Task TileReduceWorld::spare_warp(std::int32_t index, std::uint64_t epoch, const SpareWarp& warp) {
  SumOutput only_c;
  co_await sum(index, epoch, warp, only_c);
}

Task TileReduceWorld::sum(std::int32_t index, std::uint64_t epoch, const SpareWarp& warp, SumOutput& output) {
  if (!plan(index).reduce.marked) {
    co_await sum_units(index, epoch, output);
  } else if (warp.multiplied) {
    co_await sum_marked_units(index, epoch, output);
  }
}

Task TileReduceWorld::send(std::int32_t index, std::uint64_t epoch, std::int32_t) {
  co_await put_partials(index, epoch);
}

/// Words and puts for owners without rows, so that every launch sees one of every rank that could overwrite
/// what it reads.
Task TileReduceWorld::exchange_empty(std::int32_t index, std::uint64_t epoch) {
  if (has(Fault::kNoDummySignals)) co_return;
  for (std::int32_t turn = 0; turn < plan(index).tiles.turns(); ++turn) {
    if (rows_of(index, turn) > 0) continue;
    co_await scheduler_.step();
    scheduler_.set(ready(reducer_of(index, turn), turn / plan(index).reduce.sources, local_of(index), 0),
                   kernels::PushReducePlan::count(epoch));
  }
  for (std::int32_t node_turn = 0; node_turn <= others(index); ++node_turn) {
    if (rows_of(index, reduced(index, node_turn)) > 0) continue;
    for (const Awaited& each : awaited(index, epoch, node_turn, 0, 0))
      if (!co_await scheduler_.wait(*each.word, each.count)) co_return;
  }
}

/// Partials of every rail peer as they are staged, each one's next chunk in turn.
Task TileReduceWorld::put_partials(std::int32_t index, std::uint64_t epoch) {
  const kernels::PutPartialsPlan& partials = plan(index).partials;
  for (std::int32_t chunk = 0; chunk < plan(index).most_chunks(); ++chunk) {
    for (std::int32_t turn = 0; turn < others(index); ++turn) {
      const std::int32_t units = packed_units(index, turn), to = owner(index, reduced(index, turn));
      if (chunk >= partials.chunks(units)) continue;
      const std::int32_t begin = partials.chunk_begin(chunk, units);
      const auto count = static_cast<std::uint64_t>(partials.chunk_begin(chunk + 1, units) - begin);
      if (!co_await scheduler_.wait(staged(index, turn, chunk), (epoch + 1) * count)) co_return;
      const std::uint64_t at = static_cast<std::uint64_t>(begin) * kUnitBytes;
      put(channel(index, to, 0), staged_at(index, epoch, turn) + at,
          partial(to, epoch, others(index) - 1 - turn) + at, count * kUnitBytes);
      co_await scheduler_.step();
    }
  }
  for (std::int32_t turn = 0; turn < others(index) && !has(Fault::kNoCompletions); ++turn) {
    const auto puts = (epoch + 1) * static_cast<std::uint64_t>(partials.chunks(packed_units(index, turn)));
    const std::int32_t to = owner(index, reduced(index, turn));
    if (!co_await scheduler_.wait(channel(index, to, 0).completions_seen, puts)) co_return;
  }
}

// ---- sums ----

SumUnit TileReduceWorld::unit_at(std::int32_t index, std::int32_t number) const {
  const kernels::ReduceUnits& units = plan(index).units;
  if (has(Fault::kOwnSumsFirst)) number = (number + units.others * units.units()) % units.all_units();
  const auto [node_turn, unit] = units.turn(number);
  const std::int32_t turn = reduced(index, node_turn);
  const std::int32_t packed = packs(index) ? units.packed(unit, rows_of(index, turn)) : unit;
  return {node_turn, turn, unit, packed, units.place(unit)};
}

/// The tile of every source; for own rows also the partials of the other nodes.
std::vector<TileReduceWorld::Awaited> TileReduceWorld::awaited(std::int32_t index, std::uint64_t epoch,
                                                               std::int32_t node_turn, std::int32_t tile,
                                                               std::int32_t packed) {
  std::vector<Awaited> all;
  for (std::int32_t source = 0; source < ranks_per_node(); ++source)
    all.push_back({&ready(index, node_turn, source, tile), kernels::PushReducePlan::count(epoch)});
  if (node_turn < others(index) || has(Fault::kNoArrivals)) return all;
  const kernels::PutPartialsPlan& partials = plan(index).partials;
  for (std::int32_t sender = 0; sender < others(index); ++sender) {
    Channel& from = channel(owner(index, reduced(index, sender)), index, 0);
    all.push_back({&from.arrivals_seen,
                   partials.count(epoch, packed_units(index, node_turn), packed / partials.chunk_units)});
  }
  return all;
}

bool TileReduceWorld::summands_hold(std::int32_t index, std::uint64_t epoch, const SumUnit& unit) {
  bool right = true;
  Memory& memory = rank(index).workspace;
  const std::int32_t whose = owner(index, unit.turn);
  const std::int64_t first_row = plan(index).reduce.first_row(whose);
  for (std::int32_t source = 0; source < ranks_per_node(); ++source) {
    const std::int32_t from = rank_at(node_of(index), source);
    const std::uint64_t slot_at = slot(index, epoch, unit.node_turn, source);
    for_each_row(index, unit, [&](const Span& row) {
      const auto at = static_cast<std::int64_t>(row.at) + first_row * columns_ * 2;
      right &= holds(index, epoch, memory, {slot_at + row.at, row.bytes},
                     stamp(epoch, Content::kPartialTile, from, memory.cells(at)), "a tile");
    });
  }
  if (unit.node_turn < others(index)) return right;
  for (std::int32_t sender = 0; sender < others(index); ++sender) {
    const std::int32_t from = owner(index, reduced(index, sender));
    const std::uint64_t at =
        partial(index, epoch, sender) + static_cast<std::uint64_t>(unit.packed) * kUnitBytes;
    right &= holds(index, epoch, memory, {at, kUnitBytes},
                   unit_stamp(epoch, Content::kNodeSum, from, index, unit.unit), "a node's sum");
  }
  return right;
}

/// One unit of own rows, into c and wherever else it goes.
void TileReduceWorld::store_own(std::int32_t index, std::uint64_t epoch, const SumUnit& unit, bool right,
                                SumOutput& output) {
  const std::uint64_t c_rows = c_offset(index, unit.turn);
  for_each_row(index, unit, [&](const Span& row) {
    write_result(index, epoch, {c_rows + row.at, row.bytes}, right);
  });
  output.store(unit, right);
}

Task TileReduceWorld::sum_units(std::int32_t index, std::uint64_t epoch, SumOutput& output) {
  const auto& mine = plan(index);
  Memory& memory = rank(index).workspace;
  Staged sums;
  const auto flush_staged = [&] {
    sums.stores.finish();
    if (sums.chunk != nullptr) scheduler_.add(*sums.chunk, 1);
    sums.chunk = nullptr;
  };
  UnitClaims claims(counts(index).claimed, epoch, static_cast<std::uint32_t>(mine.units.all_units()),
                    spare_warps(index));
  co_await scheduler_.step();  // others claim in between
  while (const auto number = claims.take()) {
    co_await scheduler_.step();
    const SumUnit unit = unit_at(index, *number);
    if (unit.place.row >= rows_of(index, unit.turn)) continue;
    const std::int32_t tile = unit.place.row_tile * mine.units.raster.columns() + unit.place.column;
    const std::vector<Awaited> words = awaited(index, epoch, unit.node_turn, tile, unit.packed);
    const bool here = std::all_of(words.begin(), words.end(),
                                  [](const Awaited& each) { return each.word->value >= each.count; });
    if (!here && !has(Fault::kLateFlush)) {
      flush_staged();
      co_await output.flush();
    }
    bool gave_up = false;
    for (const Awaited& each : words) {
      if (!gave_up && each.word->value < each.count)
        gave_up = !co_await scheduler_.wait(*each.word, each.count);
    }
    if (gave_up) break;
    bool right = summands_hold(index, epoch, unit);
    co_await scheduler_.step();
    right &= summands_hold(index, epoch, unit);
    flush_staged();
    if (output.full()) co_await output.flush();
    if (unit.node_turn == others(index)) {
      store_own(index, epoch, unit, right, output);
      continue;
    }
    const Span at{
        staged_at(index, epoch, unit.node_turn) + static_cast<std::uint64_t>(unit.packed) * kUnitBytes,
        kUnitBytes};
    begin_write(memory, at);
    sums.stores.add(memory, at,
                    unit_stamp(epoch, Content::kNodeSum, index, owner(index, unit.turn), unit.unit), right);
    sums.chunk = &staged(index, unit.node_turn, unit.packed / mine.partials.chunk_units);
  }
  flush_staged();
  co_await output.flush();
}

// ---- the end ----

std::string TileReduceWorld::check_counts() {
  const std::uint64_t launches = settings_.launches;
  for (const auto& [key, each] : channels()) {
    if (each.lane != 0) continue;
    const auto expected = launches * static_cast<std::uint64_t>(plan(each.to).chunks(each.to));
    if (each.posted != expected || each.arrivals != expected || each.completions != expected)
      return "a channel of partials carries " + std::to_string(each.posted) + " puts, not " +
             std::to_string(expected);
  }
  for (std::int32_t index = 0; index < plan(0).reduce.world; ++index) {
    const auto& mine = plan(index);
    const auto all = static_cast<std::uint64_t>(mine.units.all_units());
    const std::uint64_t warps = mine.reduce.marked ? multiplying_warps(index) : spare_warps(index);
    if (counts(index).claimed != launches * (all + warps))
      return "claims of rank " + std::to_string(index) + " end at " + std::to_string(counts(index).claimed);
    for (std::int32_t turn = 0; turn < others(index); ++turn) {
      const std::int32_t units = packed_units(index, turn);
      for (std::int32_t chunk = 0; chunk < mine.partials.chunks(units); ++chunk) {
        const std::int32_t begin = mine.partials.chunk_begin(chunk, units);
        const std::int32_t count = mine.partials.chunk_begin(chunk + 1, units) - begin;
        if (staged(index, turn, chunk).value != launches * static_cast<std::uint64_t>(count))
          return "staged units of rank " + std::to_string(index) + " end at another count";
      }
    }
    if (mine.reduce.marked && rows_of(index, reduced(index, 0)) > 0) continue;
    for (std::int32_t node_turn = 0; node_turn <= others(index); ++node_turn) {
      for (std::int32_t source = 0; source < ranks_per_node(); ++source) {
        if (ready(index, node_turn, source, 0).value != kernels::PushReducePlan::count(launches - 1))
          return "ready words of rank " + std::to_string(index) + " end at another count";
      }
    }
  }
  return slots_.check();
}

}  // namespace mkernel::test

// The roles of AgGemmWorld, in the order of kernels/cuda/comm/fan_out.cuh and kernels/ops/ag_gemm/roles.cuh.
#include "tests/unit/kernels/plan/simulation/ag_gemm.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace mkernel::test {

/// Chunks into stages; those of rail peers when they have arrived.
Task AgGemmWorld::load(Pushing& shared) {
  const std::int32_t index = shared.rank;
  const std::vector<Turn> order = turns(index);
  bool came = true;
  for (std::uint64_t number = 0; number < order.size(); ++number) {
    const Turn turn = order[number];
    const std::int32_t source = source_of(index, turn);
    if (came && turn.stream > 0 && !has(Fault::kNoArrivals)) {
      const auto chunks = static_cast<std::uint64_t>(plan(index).gather.chunks(source));
      came = co_await scheduler_.wait(channel(source, index, 0).arrivals_seen,
                                      shared.epoch * chunks + static_cast<std::uint64_t>(turn.chunk) + 1);
      if (!came) shared.lost = number;
    }
    if (number >= stages_) co_await scheduler_.meet(shared.freed, number + 1 - stages_);
    const Range rows = rows_of_share(index, source, turn.chunk, shared.share);
    for (int looks = 0; came && turn.stream > 0 && looks < 2; ++looks) {  // as it begins, as it ends
      for_each_row(index, shared.epoch, source, turn.chunk, rows, [&](const Span& span, Stamp first) {
        holds(index, shared.epoch, rank(index).workspace, span, first, "rows to push on");
      });
      co_await scheduler_.step();
    }
    scheduler_.add(shared.loaded, 1);
  }
  end_warp(shared);
}

/// Every third chunk from its stage to the other ranks of the node, and own rows to where they are put from.
Task AgGemmWorld::store(Pushing& shared, std::uint64_t storer) {
  const std::int32_t index = shared.rank;
  const std::vector<Turn> order = turns(index);
  for (std::uint64_t number = storer; number < order.size(); number += kStorers) {
    co_await scheduler_.meet(shared.issued, number);
    co_await scheduler_.meet(shared.loaded, number + 1);
    const Turn turn = order[number];
    const std::int32_t source = source_of(index, turn);
    const bool came = number < shared.lost;
    const Range rows = rows_of_share(index, source, turn.chunk, shared.share);
    std::vector<std::int32_t> targets;
    for (std::int32_t t = 1; t < ranks_per_node(); ++t)
      targets.push_back(rank_at(node_of(index), local_of(index) + t));
    if (source == index && plan(index).rails() > 0) targets.push_back(index);
    if (came && has(Fault::kCountFirst)) co_await signal(shared, source, turn.chunk);
    for (const std::int32_t target : targets) {
      if (!came) break;
      for_each_row(target, shared.epoch, source, turn.chunk, rows,
                   [&](const Span& span, Stamp) { begin_write(rank(target).workspace, span); });
    }
    scheduler_.add(shared.issued, 1);
    co_await scheduler_.step();
    scheduler_.add(shared.freed, 1);
    for (const std::int32_t target : targets) {
      if (!came) break;
      co_await scheduler_.step();
      for_each_row(target, shared.epoch, source, turn.chunk, rows,
                   [&](const Span& span, Stamp first) { rank(target).workspace.end_write(span, first); });
    }
    if (came && !has(Fault::kCountFirst)) co_await signal(shared, source, turn.chunk);
  }
  if (shared.share == 0 && storer == 0) co_await wait_empty(index, shared.epoch);
  end_warp(shared);
}

/// A share of a chunk is at all ranks of the node that need it.
Task AgGemmWorld::signal(Pushing& shared, std::int32_t source, std::int32_t chunk) {
  for (std::int32_t t = 1; t <= ranks_per_node(); ++t) {
    const std::int32_t target = rank_at(node_of(shared.rank), local_of(shared.rank) + t);
    if (target == shared.rank && plan(target).rails() == 0) continue;
    co_await scheduler_.step();
    scheduler_.add(ready(target, source, chunk), 1);
  }
}

Task AgGemmWorld::wait_empty(std::int32_t index, std::uint64_t epoch) {
  if (has(Fault::kNoDummySignals)) co_return;
  for (std::int32_t source = 0; source < plan(index).steps.world; ++source) {
    if (source == index || plan(index).gather.rows_of(source) > 0) continue;
    if (!co_await wait_chunk(index, epoch, source, 0)) co_return;
  }
}

Task AgGemmWorld::inter_send(Pushing& shared) {
  const std::int32_t index = shared.rank, rails = plan(index).rails();
  const std::uint64_t epoch = shared.epoch;
  const auto& gather = plan(index).gather;
  bool gave_up = false;
  for (std::int32_t chunk = 0; chunk < gather.chunks(index) && !gave_up; ++chunk) {
    gave_up = !co_await wait_chunk(index, epoch, index, chunk);
    const std::uint64_t at = slab(index, epoch, index) + gather.chunk_offset(index, chunk);
    for (std::int32_t i = 0; i < rails && !gave_up; ++i) {
      put(channel(index, rail(index, i), 0), at, at, gather.chunk_bytes(index, chunk));
      co_await scheduler_.step();
    }
  }
  const std::uint64_t puts = (epoch + 1) * static_cast<std::uint64_t>(gather.chunks(index));
  for (std::int32_t i = 0; i < rails && !gave_up && !has(Fault::kNoCompletions); ++i)
    gave_up = !co_await scheduler_.wait(channel(index, rail(index, i), 0).completions_seen, puts);
  end_warp(shared);
}

/// The tiles of one CTA: the whole ones, or the tail.
Task AgGemmWorld::compute(std::int32_t index, std::uint64_t epoch, std::int32_t cta, bool tail) {
  const auto& mine = plan(index);
  const kernels::TileAssignment& assignment = mine.assignment;
  const kernels::TileSize tile = mine.tile;
  const std::int32_t cluster = cta / tile.cluster - mine.comm_ctas / tile.cluster;
  const std::int32_t clusters = mine.compute_ctas / tile.cluster, parts = kernels::tail_parts(tile);
  if (tail && !kernels::has_tail(tile)) co_return;
  const std::int32_t tiles =
      tail ? assignment.tail_tiles(cluster, clusters, parts) : assignment.tiles(cluster, clusters);
  const std::int64_t width = tail ? kernels::kSm90TailColumns : tile.columns;
  for (std::int32_t i = 0; i < tiles; ++i) {
    const kernels::TileAssignment::Place place =
        tail ? assignment.tail_place(i, cluster, clusters, parts) : assignment.place(i, cluster, clusters);
    const std::int64_t column = std::int64_t{place.tile.column} * tile.columns + place.part * width;
    co_await multiply(index, epoch, mine.steps.place(place.tile.row), cta % tile.cluster,
                      {std::min(shape_.n, column), std::min(shape_.n, column + width)});
  }
}

/// One tile. Where a wait gives up it is computed from whatever there is.
Task AgGemmWorld::multiply(std::int32_t index, std::uint64_t epoch, kernels::ArrivalSteps::Place step,
                           std::int32_t in_cluster, Range columns) {
  const auto& gather = plan(index).gather;
  const kernels::TileSize tile = plan(index).tile;
  const std::int64_t first = std::int64_t{step.block} * tile.block_rows() + in_cluster * tile.rows;
  const std::int64_t end = std::min(gather.rows_of(step.source), first + tile.rows);
  if (first >= end) co_return;
  bool right = true;
  Memory& memory = rank(index).workspace;
  for (std::int32_t part = 0; part < gather.row.parts && step.source != index; ++part) {
    right &= co_await wait_chunk(index, epoch, step.source, step.block * gather.row.parts + part);
    const auto bytes = static_cast<std::uint64_t>(gather.row.bytes(part));
    const std::uint64_t at = slab(index, epoch, step.source) + gather.part_offset(step.source, part);
    for (int looks = 0; looks < 2; ++looks) {
      for (std::int64_t row = first; row < end && right; ++row) {
        right &= holds(index, epoch, memory, {at + static_cast<std::uint64_t>(row) * bytes, bytes},
                       row_stamp(memory, epoch, index, step.source, row, part), "rows");
      }
      co_await scheduler_.step();
    }
  }
  for (std::int64_t row = first; row < end; ++row) {
    const std::int64_t at = (gather.first_row(step.source) + row) * shape_.n + columns.begin;
    write_result(index, epoch,
                 {static_cast<std::uint64_t>(at) * 2, static_cast<std::uint64_t>(columns.size()) * 2}, right);
  }
  co_await scheduler_.step();
}

std::string AgGemmWorld::check_counts() {
  const std::uint64_t launches = settings_.launches;
  for (const auto& [key, channel] : channels()) {
    const auto expected = launches * static_cast<std::uint64_t>(plan(channel.to).gather.chunks(channel.from));
    if (channel.posted != expected || channel.arrivals != expected || channel.completions != expected)
      return "a channel carries " + std::to_string(channel.posted) + " puts, not " + std::to_string(expected);
  }
  for (std::int32_t index = 0; index < plan(0).steps.world; ++index) {
    for (std::int32_t source = 0; source < plan(0).steps.world; ++source) {
      if (source == index && plan(index).rails() == 0) continue;  // its rows are in place
      for (std::int32_t chunk = 0; chunk < plan(index).gather.chunks(source); ++chunk) {
        const std::uint64_t value = ready(index, source, chunk).value;
        if (value != plan(index).gather.count(launches - 1))
          return "ready[" + std::to_string(source) + "][" + std::to_string(chunk) + "] of rank " +
                 std::to_string(index) + " ends at " + std::to_string(value);
      }
    }
  }
  return "";
}

}  // namespace mkernel::test

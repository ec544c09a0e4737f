// The roles of AgGemmWorld, in the order of kernels/ops/ag_gemm/roles.cuh.
#include "tests/unit/kernels/plan/simulation/ag_gemm.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace mkernel::test {

std::vector<std::int32_t> AgGemmWorld::sources_of(std::int32_t slab, const Range& rows) const {
  if (!gather().shared) return {slab};
  std::vector<std::int32_t> sources;
  gather().each_source(rows.begin, rows.end, [&](std::int32_t source) {
    sources.push_back(source);
    return true;
  });
  return sources;
}

void AgGemmWorld::for_each_row(std::int32_t index, std::uint64_t epoch, const Chunk& chunk,
                               std::int32_t share, const VisitRow& visit) {
  const std::int32_t part = chunk.chunk % gather().row.parts;
  const std::int64_t first = chunk.chunk / gather().row.parts * std::int64_t{gather().block_rows};
  const auto rows = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(gather().rows_of(chunk.source) - first, 0, gather().block_rows));
  const auto bytes = static_cast<std::uint64_t>(gather().row.bytes(part));
  const std::uint64_t at = half(epoch) + gather().chunk_offset(chunk.source, chunk.chunk);
  const std::int32_t end = rows * (share + 1) / gather().shares;
  for (std::int32_t row = rows * share / gather().shares; row < end; ++row) {
    visit({at + static_cast<std::uint64_t>(row) * bytes, bytes},
          row_stamp(rank(index).workspace, epoch, chunk.source, first + row, part));
  }
}

Task AgGemmWorld::wait_at_end(std::int32_t index, std::uint64_t epoch) {
  if (has(Fault::kNoDummySignals)) co_return;
  for (std::int32_t source = 0; source < plan(index).steps.world; ++source) {
    if (source == index || gather().rows_of(source) > 0) continue;
    if (!co_await wait_chunk(index, epoch, {source, 0, 0})) co_return;
  }
}

Task AgGemmWorld::inter_send(Pushing& shared) {
  const std::int32_t index = shared.rank;
  const std::uint64_t epoch = shared.epoch;
  bool gave_up = false;
  for (std::int32_t chunk = 0; chunk < chunks_of(index) && !gave_up; ++chunk) {
    gave_up = !co_await wait_chunk(index, epoch, {index, 0, chunk});
    const std::uint64_t at = half(epoch) + gather().chunk_offset(index, chunk);
    for (std::int32_t i = 0; i < rails() && !gave_up; ++i) {
      put(channel(index, rail(index, i), 0), at, at, gather().chunk_bytes(index, chunk));
      co_await scheduler_.step();
    }
  }
  co_await end_sending(shared, gave_up, (epoch + 1) * static_cast<std::uint64_t>(chunks_of(index)));
}

Task AgGemmWorld::compute(std::int32_t index, std::uint64_t epoch, std::int32_t cta) {
  const bool pushed = cta < comm_ctas(index);
  if (pushed && (plan(index).assignment.late == 0 || cta < plan(index).tile.cluster)) co_return;
  co_await compute_tiles(index, epoch, cta, false);
  if (!pushed) co_await compute_tiles(index, epoch, cta, true);
}

/// The tiles of one CTA: the whole ones, or the tail.
Task AgGemmWorld::compute_tiles(std::int32_t index, std::uint64_t epoch, std::int32_t cta, bool tail) {
  const auto& mine = plan(index);
  const kernels::TileAssignment& assignment = mine.assignment;
  const kernels::TileSize tile = mine.tile;
  const std::int32_t cluster = cta / tile.cluster - mine.comm_ctas / tile.cluster;
  const std::int32_t clusters = mine.compute_ctas / tile.cluster, parts = kernels::tail_parts(tile);
  if (tail && !kernels::has_tail(tile)) co_return;
  const std::int32_t tiles =
      tail ? assignment.tail_tiles(cluster, clusters, parts) : assignment.tiles(cluster, clusters);
  const kernels::Sm90TailParts narrow = kernels::tail_parts_of(tile, mine.cluster);
  const std::int64_t width = tail ? kernels::kSm90TailColumns : tile.columns;
  for (std::int32_t i = 0; i < tiles; ++i) {
    const kernels::TileAssignment::Place place =
        tail ? assignment.tail_place(i, cluster, clusters, parts) : assignment.place(i, cluster, clusters);
    const std::int32_t in_cluster = cta % tile.cluster;
    const auto in = tail ? narrow.place(place.part, in_cluster)
                         : kernels::Sm90TailParts::Place{in_cluster * tile.rows, 0};
    const std::int64_t column = std::int64_t{place.tile.column} * tile.columns + in.column;
    co_await multiply(index, epoch, mine.row_block(place.tile.row), in.row,
                      {std::min(shape_.n, column), std::min(shape_.n, column + width)});
  }
}

/// One tile. Where a wait gives up it is computed from whatever there is.
Task AgGemmWorld::multiply(std::int32_t index, std::uint64_t epoch, kernels::ArrivalSteps::Place block,
                           std::int32_t row_of_block, Range columns) {
  const kernels::TileSize tile = plan(index).tile;
  const std::int32_t slab = block.source;
  const std::int64_t first = std::int64_t{block.block} * tile.block_rows() + row_of_block;
  const std::int64_t end = std::min(gather().slab_rows(slab), first + tile.rows);
  if (first >= end) co_return;
  const bool in_place = !gather().shared && slab == index;
  bool right = true;
  Memory& memory = rank(index).workspace;
  for (std::int32_t part = 0; part < gather().row.parts && !in_place; ++part) {
    const std::int32_t chunk = (gather().shared ? 0 : block.block * gather().row.parts) + part;
    for (const std::int32_t source : sources_of(slab, {first, end}))
      right &= co_await wait_chunk(index, epoch, {source, 0, chunk});
    const auto bytes = static_cast<std::uint64_t>(gather().row.bytes(part));
    const std::uint64_t at = half(epoch) + gather().part_offset(slab, part);
    for (int looks = 0; looks < 2; ++looks) {
      for (std::int64_t row = first; row < end && right; ++row) {
        right &= holds(index, epoch, memory, {at + static_cast<std::uint64_t>(row) * bytes, bytes},
                       slab_stamp(memory, epoch, slab, row, part), "rows");
      }
      co_await scheduler_.step();
    }
  }
  for (std::int64_t row = first; row < end; ++row) {
    const std::int64_t at = (gather().slab_row(slab) + row) * shape_.n + columns.begin;
    write_result(index, epoch,
                 {static_cast<std::uint64_t>(at) * 2, static_cast<std::uint64_t>(columns.size()) * 2}, right);
  }
  co_await scheduler_.step();
}

std::string AgGemmWorld::check_counts() {
  for (const auto& [key, channel] : channels()) {
    const auto expected = settings_.launches * static_cast<std::uint64_t>(chunks_of(channel.from));
    if (const std::string error = check_channel(channel, expected); !error.empty()) return error;
  }
  for (std::int32_t index = 0; index < plan(0).steps.world; ++index) {
    for (std::int32_t source = 0; source < plan(0).steps.world; ++source)
      if (const std::string error = check_ready(index, source, 1); !error.empty()) return error;
  }
  return "";
}

}  // namespace mkernel::test

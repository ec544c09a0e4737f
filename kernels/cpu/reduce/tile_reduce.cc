#include "kernels/cpu/reduce/tile_reduce.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/signal.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/memory/convert.h"
#include "kernels/cpu/memory/floats.h"

namespace mkernel::kernels {
namespace {

constexpr const char* kComm = "intra_comm";
constexpr const char* kSend = "inter_send";

/// Adds `count` elements of `type` at `from` to `sum`, or begins it with them.
void accumulate(DataType type, const std::byte* from, float* sum, std::int64_t count, bool first) {
  const auto elements = static_cast<std::size_t>(count);
  if (first) return widen(type, from, sum, elements);
  float summand[kReduceUnitElements];
  widen(type, from, summand, elements);
  for (std::size_t i = 0; i < elements; ++i) sum[i] += summand[i];
}

}  // namespace

TileReduceOptions host_options(TileReduceOptions options, const GemmShape& shape, const Topology& topology) {
  if (options.tile) return options;
  options.tile = host_tile(shape, topology);
  options.reduce_ctas = 1;
  return options;
}

TileReduce::TileReduce(const TileReducePlan& plan, const GemmShape& shape, const Topology& topology,
                       const SymmetricView& workspace, const SymmetricView& lent, Endpoint& endpoint)
    : plan_(plan),
      shape_(shape),
      topology_(topology),
      workspace_(workspace),
      lent_(lent),
      endpoint_(endpoint),
      node_(topology.node_of(static_cast<std::uint32_t>(plan.rank()))),
      local_(static_cast<std::int32_t>(topology.local_of(static_cast<std::uint32_t>(plan.rank())))),
      staged_(static_cast<std::size_t>(plan.units.others * plan.most_chunks())) {}

std::uint64_t& TileReduce::word(std::byte* workspace, std::uint64_t offset) const {
  return *reinterpret_cast<std::uint64_t*>(workspace + offset);
}

std::int32_t TileReduce::reduced(std::int32_t node_turn) const {
  const std::int32_t sources = plan_.tiles.node_turns;
  return plan_.owners[static_cast<std::size_t>(node_turn * sources + sources - 1)];
}

SumUnit TileReduce::unit_of(std::int32_t owner, std::int32_t unit) const {
  const ReduceUnits::Place place = plan_.units.place(unit);
  const std::int64_t rows = plan_.reduce.rows_of(owner);
  const std::int64_t column = std::int64_t{place.column} * plan_.tile.columns;
  return {owner,
          unit,
          plan_.units.packed(unit, rows),
          place.row_tile,
          place.column,
          {place.row, std::max(place.row, std::min(rows, place.row + plan_.units.unit_rows))},
          {column, std::min(shape_.n, column + plan_.tile.columns)}};
}

void TileReduce::store_unit(const SumUnit& unit, const std::byte* from, std::byte* c) const {
  const auto bytes = static_cast<std::size_t>(unit.columns.size()) * 2;
  for (std::int64_t row = unit.rows.begin; row < unit.rows.end; ++row, from += plan_.tile.columns * 2)
    std::memcpy(c + (row * shape_.n + unit.columns.begin) * 2, from, bytes);
}

/// What an owner has of a tile into this rank's slot at the owner's reducer; raises the word of the tile
/// there. product: of all rows of the tile.
void TileReduce::store_part(const Launch& launch, const TileReducePlan::Tile& tile,
                            const TileReducePlan::Tile::Part& part, Range columns,
                            const float* product) const {
  const std::int32_t owner = plan_.owners[static_cast<std::size_t>(part.turn)];
  const std::int32_t node_turn = part.turn / plan_.tiles.node_turns;
  const std::uint32_t reducer = topology_.local_of(static_cast<std::uint32_t>(owner));
  std::byte* slot = lent_.node[reducer] + launch.half_at + plan_.reduce.slot_offset(node_turn, local_);
  const std::int64_t above = plan_.reduce.first_row(owner) - tile.first_row;  // of the owner's first row
  for (std::int64_t row = part.begin; row < part.end; ++row) {
    narrow(shape_.dtype, product + (above + row) * columns.size(),
           slot + (row * shape_.n + columns.begin) * 2, static_cast<std::size_t>(columns.size()));
  }
  const auto at = static_cast<std::uint64_t>(plan_.ready_word(part.begin, tile.column)) * 8;
  signal_set(word(workspace_.node[reducer], plan_.reduce.ready_offset(node_turn, local_) + at),
             PushReducePlan::count(launch.epoch));
}

void TileReduce::start(const CpuGemm& gemm, OperandB& b, const void* a, Work& work,
                       const std::function<Status(int thread)>& spare, Launch& launch) {
  launch.roles.start(kComm, [spare] { return spare(0); });
  if (plan_.reduce.some_without_rows())
    launch.roles.start(kComm, [this, &launch] { return exchange_empty(launch); });
  if (plan_.units.others > 0) launch.roles.start(kSend, [this, &launch] { return put_partials(launch); });
  for (int thread = 0; thread < launch.compute_threads; ++thread) {
    launch.roles.start("compute", [this, &gemm, &b, a, &work, spare, &launch, thread]() -> Status {
      MK_RETURN_IF_ERROR(b.widen_part(launch, thread));
      MK_RETURN_IF_ERROR(multiply(gemm, a, work, launch));
      return spare(thread);
    });
  }
}

Status TileReduce::multiply(const CpuGemm& gemm, const void* a, Work& work, const Launch& launch) const {
  const TileSize& size = plan_.tile;
  const Floats scratch = make_floats(size.rows * shape_.k);
  const Floats product = make_floats(std::int64_t{size.rows} * size.columns);
  for (std::int32_t i = work.tiles.next(); i < work.tiles.all(); i = work.tiles.next()) {
    if (launch.roles.stop()) return {};
    for (std::int32_t cta = 0; cta < size.cluster; ++cta) {
      const TileReducePlan::Tile tile = plan_.tile_at(i, cta);
      if (tile.rows == 0) continue;
      const std::int64_t column = std::int64_t{tile.column} * size.columns;
      const Range columns{column, std::min(shape_.n, column + size.columns)};
      gemm.tile(static_cast<const std::uint16_t*>(a) + tile.first_row * shape_.k, tile.rows, columns,
                scratch.get(), product.get(), columns.size());
      for (const auto& part : tile.parts) store_part(launch, tile, part, columns, product.get());
    }
  }
  return {};
}

/// Until the unit's tile has come from every rank of the node and, for own rows, the chunk that holds it from
/// every other node.
Status TileReduce::wait_unit(const Launch& launch, std::int32_t node_turn, const SumUnit& unit) const {
  const std::int64_t tile = std::int64_t{unit.row_tile} * plan_.units.raster.columns() + unit.column;
  for (std::int32_t source = 0; source < plan_.reduce.sources; ++source) {
    const std::uint64_t offset =
        plan_.reduce.ready_offset(node_turn, source) + static_cast<std::uint64_t>(tile) * 8;
    MK_RETURN_IF_ERROR(wait_at_least(
        word(workspace_.mine, offset), PushReducePlan::count(launch.epoch),
        {kComm, "a tile", topology_.rank_at(node_, static_cast<std::uint32_t>(source)), -1}, launch.scope));
  }
  if (unit.owner != rank()) return {};
  const std::uint64_t count = plan_.partials.count(launch.epoch, plan_.packed_units(rank()),
                                                   unit.packed / plan_.partials.chunk_units);
  for (std::int32_t sender = 0; sender < plan_.units.others; ++sender) {
    MK_RETURN_IF_ERROR(endpoint_.wait_arrival(static_cast<std::uint32_t>(reduced(sender)), 0, count,
                                              "inter_reduce", launch.at_stage(kAfterNode)));
  }
  return {};
}

/// sums: the slots of the ranks of the node in their order, then the partials of other nodes in the order in
/// which they follow this one, rounded once: the same bits whoever was first.
void TileReduce::sum_unit(const Launch& launch, std::int32_t node_turn, const SumUnit& unit,
                          std::byte* sums) const {
  float sum[kReduceUnitElements];
  const std::int64_t width = unit.columns.size();
  for (std::int64_t row = 0; row < unit.rows.size(); ++row) {
    const std::int64_t at = ((unit.rows.begin + row) * shape_.n + unit.columns.begin) * 2;
    for (std::int32_t source = 0; source < plan_.reduce.sources; ++source) {
      const std::byte* slot = lent_.mine + launch.half_at + plan_.reduce.slot_offset(node_turn, source) + at;
      accumulate(shape_.dtype, slot, sum, width, source == 0);
    }
    const std::int64_t inside = row * plan_.tile.columns * 2;
    const std::uint64_t packed = static_cast<std::uint64_t>(unit.packed) * PutPartialsPlan::kUnitBytes;
    for (std::int32_t sender = 0; unit.owner == rank() && sender < plan_.units.others; ++sender) {
      const std::byte* partial =
          lent_.mine + launch.half_at + plan_.partials.partial_offset(sender) + packed + inside;
      accumulate(shape_.dtype, partial, sum, width, false);
    }
    narrow(shape_.dtype, sum, sums + inside, static_cast<std::size_t>(width));
  }
}

Status TileReduce::sum_units(const Output& output, Work& work, const Launch& launch) {
  std::byte sums[PutPartialsPlan::kUnitBytes] = {};
  for (std::int32_t i = work.units.next(); i < work.units.all(); i = work.units.next()) {
    const auto [node_turn, number] = plan_.units.turn(i);
    const SumUnit unit = unit_of(reduced(node_turn), number);
    if (unit.rows.size() == 0) continue;
    MK_RETURN_IF_ERROR(wait_unit(launch, node_turn, unit));
    sum_unit(launch, node_turn, unit, sums);
    if (unit.owner == rank()) {
      output(unit, sums);
      continue;
    }
    std::memcpy(lent_.mine + launch.half_at + plan_.partials.staged_offset(node_turn) +
                    static_cast<std::uint64_t>(unit.packed) * PutPartialsPlan::kUnitBytes,
                sums, sizeof sums);
    const std::int32_t chunk = unit.packed / plan_.partials.chunk_units;
    signal_add(staged_[static_cast<std::size_t>(node_turn * plan_.most_chunks() + chunk)], 1);
  }
  return {};
}

Status TileReduce::wait_chunk(const std::uint64_t& word, std::uint64_t count, SumStage stage,
                              const Launch& launch) const {
  return wait_at_least(word, count, {kSend, "a chunk", rank(), -1}, launch.at_stage(stage));
}

Status TileReduce::put_partials(const Launch& launch) {
  const PutPartialsPlan& plan = plan_.partials;
  const std::int32_t others = plan_.units.others, chunks = plan_.most_chunks();
  for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
    for (std::int32_t turn = 0; turn < others; ++turn) {
      const std::int32_t units = plan_.packed_units(reduced(turn));
      if (chunk >= plan.chunks(units)) continue;
      const std::int32_t begin = plan.chunk_begin(chunk, units), end = plan.chunk_begin(chunk + 1, units);
      MK_RETURN_IF_ERROR(wait_chunk(staged_[static_cast<std::size_t>(turn * chunks + chunk)],
                                    (launch.epoch + 1) * static_cast<std::uint64_t>(end - begin), kAfterNode,
                                    launch));
      const std::uint64_t at = static_cast<std::uint64_t>(begin) * PutPartialsPlan::kUnitBytes;
      const std::uint64_t bytes = static_cast<std::uint64_t>(end - begin) * PutPartialsPlan::kUnitBytes;
      MK_RETURN_IF_ERROR(
          endpoint_.put(static_cast<std::uint32_t>(reduced(turn)), 0,
                        {lent_.region, launch.half_at + plan.staged_offset(turn) + at},
                        {lent_.region, launch.half_at + plan.partial_offset(others - 1 - turn) + at}, bytes,
                        kSend, launch.scope));
    }
  }
  // A later launch stages in the same place.
  for (std::int32_t turn = 0; turn < others; ++turn) {
    const auto puts = static_cast<std::uint64_t>(plan.chunks(plan_.packed_units(reduced(turn))));
    MK_RETURN_IF_ERROR(endpoint_.wait_completed(static_cast<std::uint32_t>(reduced(turn)), 0,
                                                (launch.epoch + 1) * puts, kSend, launch.scope));
  }
  return {};
}

Status TileReduce::exchange_empty(const Launch& launch) const {
  for (std::size_t turn = 0; turn < plan_.owners.size(); ++turn) {
    const std::int32_t owner = plan_.owners[turn];
    if (plan_.reduce.rows_of(owner) > 0) continue;
    const auto node_turn = static_cast<std::int32_t>(turn) / plan_.tiles.node_turns;
    signal_set(word(workspace_.node[topology_.local_of(static_cast<std::uint32_t>(owner))],
                    plan_.reduce.ready_offset(node_turn, local_)),
               PushReducePlan::count(launch.epoch));
  }
  for (std::int32_t node_turn = 0; node_turn <= plan_.units.others; ++node_turn) {
    const std::int32_t owner = reduced(node_turn);
    if (plan_.reduce.rows_of(owner) > 0) continue;
    MK_RETURN_IF_ERROR(wait_unit(launch, node_turn, {.owner = owner}));
  }
  return {};
}

}  // namespace mkernel::kernels

// The roles of GemmArWorld, in the order of kernels/ops/gemm_ar/roles.cuh.
#include "tests/unit/kernels/plan/simulation/gemm_ar.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace mkernel::test {
namespace {

std::vector<kernels::TileReducePlan> products_of(const std::vector<kernels::GemmArPlan>& plans) {
  std::vector<kernels::TileReducePlan> products;
  for (const auto& plan : plans) products.push_back(plan.product);
  return products;
}

}  // namespace

GemmArWorld::GemmArWorld(const std::vector<kernels::GemmArPlan>& plans, const GemmShape& shape,
                         const kernels::Topology& topology, const Warps& warps, const Settings& settings)
    : TileReduceWorld(products_of(plans), shape, topology, warps, settings,
                      static_cast<std::int32_t>(plans[0].lanes())),
      ar_plans_(plans) {}

GemmArWorld::GemmArWorld(const GemmShape& shape, const kernels::Topology& topology,
                         const std::vector<kernels::GemmArPlan>& plans, const Warps& warps,
                         const Settings& settings)
    : GemmArWorld(plans, shape, topology, warps, settings) {
  for (const auto& plan : ar_plans_) add_rank_of(plan.product, plan.word_bytes(), plan.data_bytes(), shape.m);
}

// ---- the way out of finished units ----

GemmArWorld::UnitFanOut::UnitFanOut(GemmArWorld& world, std::int32_t index, std::uint64_t epoch)
    : world_(world), index_(index), epoch_(epoch), most_pending_(1) {
  const std::int32_t units = world.plan(index).units.units();
  const auto warps = static_cast<std::int32_t>(world.spare_warps(index));
  if (world.others(index) == 0) most_pending_ = static_cast<std::size_t>(std::clamp(units / warps, 1, 8));
}

void GemmArWorld::UnitFanOut::push(const SumUnit& unit, bool right) {
  const std::int32_t of = world_.owner(index_, unit.turn);
  for (std::int32_t t = 1; t < world_.ranks_per_node(); ++t) {
    const std::int32_t target = world_.rank_at(world_.node_of(index_), world_.local_of(index_) + t);
    Memory& memory = world_.rank(target).workspace;
    const Span at{world_.sums_at(target, epoch_, of, unit.packed), kUnitBytes};
    world_.begin_write(memory, at);
    stores_.add(memory, at, world_.sum_stamp(epoch_, of, unit.unit), right);
    if (world_.has(Fault::kCountFirst))
      world_.scheduler_.set(world_.summed(target, of, unit.unit), kernels::PushSumsPlan::count(epoch_));
  }
  pending_.emplace_back(of, unit.unit);
}

void GemmArWorld::UnitFanOut::store(const SumUnit& unit, bool right) {
  push(unit, right);
  if (world_.others(index_) == 0) return;
  Memory& memory = world_.rank(index_).workspace;
  const Span at{world_.sums_at(index_, epoch_, index_, unit.packed), kUnitBytes};
  world_.begin_write(memory, at);
  stores_.add(memory, at, world_.sum_stamp(epoch_, index_, unit.unit), right);
  const std::int32_t chunk = unit.packed / world_.plan(index_).partials.chunk_units;
  chunk_ = &world_.counts(index_).finished[static_cast<std::size_t>(chunk)];
}

Task GemmArWorld::UnitFanOut::flush() {
  if (pending_.empty()) co_return;
  stores_.finish();
  for (const auto& [of, unit] : pending_) {
    for (std::int32_t t = 1; t < world_.ranks_per_node(); ++t) {
      const std::int32_t target = world_.rank_at(world_.node_of(index_), world_.local_of(index_) + t);
      co_await world_.scheduler_.step();
      world_.scheduler_.set(world_.summed(target, of, unit), kernels::PushSumsPlan::count(epoch_));
    }
  }
  pending_.clear();
  if (chunk_ != nullptr) world_.scheduler_.add(*chunk_, 1);
  chunk_ = nullptr;
}

// ---- inter_send ----

Task GemmArWorld::send(std::int32_t index, std::uint64_t epoch, std::int32_t sender) {
  if (sender == 0) {
    co_await put_partials(index, epoch);
  } else {
    co_await put_sums(index, epoch);
  }
}

Task GemmArWorld::put_sums(std::int32_t index, std::uint64_t epoch) {
  const kernels::PutPartialsPlan& partials = plan(index).partials;
  const std::int32_t units = packed_units(index, others(index));
  for (std::int32_t chunk = 0; chunk < partials.chunks(units); ++chunk) {
    const std::int32_t begin = partials.chunk_begin(chunk, units);
    const auto count = static_cast<std::uint64_t>(partials.chunk_begin(chunk + 1, units) - begin);
    Word& finished = counts(index).finished[static_cast<std::size_t>(chunk)];
    if (!co_await scheduler_.wait(finished, (epoch + 1) * count)) co_return;
    const std::uint64_t at = sums_at(index, epoch, index, begin);
    for (std::int32_t turn = 0; turn < others(index); ++turn) {
      put(channel(index, owner(index, reduced(index, turn)), 1), at, at, count * kUnitBytes);
      co_await scheduler_.step();
    }
  }
  const std::uint64_t puts = (epoch + 1) * static_cast<std::uint64_t>(partials.chunks(units));
  for (std::int32_t turn = 0; turn < others(index) && !has(Fault::kNoCompletions); ++turn) {
    const std::int32_t to = owner(index, reduced(index, turn));
    if (!co_await scheduler_.wait(channel(index, to, 1).completions_seen, puts)) co_return;
  }
}

// ---- copies ----

SumUnit GemmArWorld::unit_of(std::int32_t index, std::int32_t turn, std::int32_t unit) const {
  const kernels::ReduceUnits& units = plan(index).units;
  const std::int32_t packed = packs(index) ? units.packed(unit, rows_of(index, turn)) : unit;
  return {turn / ranks_per_node(), turn, unit, packed, units.place(unit)};
}

bool GemmArWorld::sum_holds(std::int32_t index, std::uint64_t epoch, const SumUnit& unit) {
  const std::int32_t of = owner(index, unit.turn);
  return holds(index, epoch, rank(index).workspace, {sums_at(index, epoch, of, unit.packed), kUnitBytes},
               sum_stamp(epoch, of, unit.unit), "a sum");
}

void GemmArWorld::copy(std::int32_t index, std::uint64_t epoch, const SumUnit& unit, bool right) {
  const std::uint64_t c_rows = c_offset(index, unit.turn);
  for_each_row(index, unit, [&](const Span& row) {
    write_result(index, epoch, {c_rows + row.at, row.bytes}, right);
  });
}

/// inter_recv: units of the rail peers as they arrive, into c and to the other ranks of the node.
Task GemmArWorld::forward_units(std::int32_t index, std::uint64_t epoch) {
  UnitFanOut node(*this, index, epoch);
  const kernels::PutPartialsPlan& partials = plan(index).partials;
  UnitClaims claims(counts(index).forwarded, epoch,
                    static_cast<std::uint32_t>(sums(index).units * others(index)), spare_warps(index));
  co_await scheduler_.step();  // others claim in between
  while (const auto number = claims.take()) {
    co_await scheduler_.step();
    const std::int32_t node_turn = *number % others(index), turn = reduced(index, node_turn);
    const SumUnit unit = unit_of(index, turn, *number / others(index));
    if (unit.place.row >= rows_of(index, turn)) continue;
    Word& arrived = channel(owner(index, turn), index, 1).arrivals_seen;
    const std::uint64_t count =
        partials.count(epoch, packed_units(index, node_turn), unit.packed / partials.chunk_units);
    if (arrived.value < count && !has(Fault::kLateFlush)) co_await node.flush();
    if (!has(Fault::kNoArrivals) && !co_await scheduler_.wait(arrived, count)) break;
    co_await node.flush();
    bool right = sum_holds(index, epoch, unit);
    co_await scheduler_.step();
    right &= sum_holds(index, epoch, unit);
    copy(index, epoch, unit, right);
    node.push(unit, right);
  }
  co_await node.flush();
}

/// Units of the other owners but the rail peers, each owner's next one in turn as they come.
Task GemmArWorld::copy_units(std::int32_t index, std::uint64_t epoch) {
  const std::int32_t of_node = ranks_per_node() - 1, owners = of_node * nodes();
  UnitClaims claims(counts(index).copied, epoch, static_cast<std::uint32_t>(sums(index).units * owners),
                    spare_warps(index));
  co_await scheduler_.step();  // others claim in between
  while (const auto number = claims.take()) {
    co_await scheduler_.step();
    const std::int32_t turn = *number % owners + *number % owners / of_node;
    const SumUnit unit = unit_of(index, turn, *number / owners);
    if (unit.place.row >= rows_of(index, turn)) continue;
    Word& word = summed(index, owner(index, turn), unit.unit);
    if (!co_await scheduler_.wait(word, kernels::PushSumsPlan::count(epoch))) co_return;
    bool right = sum_holds(index, epoch, unit);
    co_await scheduler_.step();
    right &= sum_holds(index, epoch, unit);
    copy(index, epoch, unit, right);
  }
}

/// One warp of three begins with copies.
Task GemmArWorld::spare_warp(std::int32_t index, std::uint64_t epoch, const SpareWarp& warp) {
  const bool sums_first = warp.number % 3 != 2 && !has(Fault::kCopiesFirst);
  UnitFanOut output(*this, index, epoch);
  if (sums_first) co_await sum_units(index, epoch, output);
  if (others(index) > 0) co_await forward_units(index, epoch);
  co_await copy_units(index, epoch);
  if (!sums_first) co_await sum_units(index, epoch, output);
}

// ---- the end ----

std::string GemmArWorld::check_counts() {
  const std::string error = TileReduceWorld::check_counts();
  return error.empty() ? check_sums() : error;
}

std::string GemmArWorld::check_sums() {
  const std::uint64_t launches = settings_.launches;
  for (const auto& [key, each] : channels()) {
    if (each.lane != 1) continue;
    const auto expected = launches * static_cast<std::uint64_t>(plan(each.from).chunks(each.from));
    if (each.posted != expected || each.arrivals != expected || each.completions != expected)
      return "a channel of sums carries " + std::to_string(each.posted) + " puts, not " +
             std::to_string(expected);
  }
  for (std::int32_t index = 0; index < plan(0).reduce.world; ++index) {
    const auto& mine = ar_plans_[static_cast<std::size_t>(index)];
    const std::uint64_t warps = spare_warps(index);
    const auto copies = static_cast<std::uint64_t>(mine.copies());
    const auto forwards = static_cast<std::uint64_t>(mine.forwards());
    if (counts(index).copied != launches * (copies + warps))
      return "copies of rank " + std::to_string(index) + " end at " + std::to_string(counts(index).copied);
    if (others(index) > 0 && counts(index).forwarded != launches * (forwards + warps))
      return "forwards of rank " + std::to_string(index) + " end at " +
             std::to_string(counts(index).forwarded);
    for (std::int32_t turn = 0; turn < mine.product.tiles.turns(); ++turn) {
      if (turn % ranks_per_node() == ranks_per_node() - 1) continue;  // this rank, or one that puts
      for (std::int32_t unit = 0; unit < mine.sums.units; ++unit) {
        const bool any = mine.product.units.place(unit).row < rows_of(index, turn);
        const std::uint64_t value = summed(index, owner(index, turn), unit).value;
        if (value != (any ? kernels::PushSumsPlan::count(launches - 1) : 0))
          return "summed units of rank " + std::to_string(index) + " end at another count";
      }
    }
  }
  return "";
}

}  // namespace mkernel::test

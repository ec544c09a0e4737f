// The roles of MarkedSumsWorld.
#include "tests/unit/kernels/plan/simulation/marked_sums.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace mkernel::test {

MarkedSumsWorld::MarkedSumsWorld(const GemmShape& shape, const kernels::Topology& topology,
                                 const std::vector<kernels::GemmArPlan>& plans, const Warps& warps,
                                 const Settings& settings)
    : GemmArWorld(plans, shape, topology, warps, settings) {
  for (const auto& plan : ar_plans_)
    add_rank_of(plan.product, plan.kernel_word_bytes(), plan.kernel_data_bytes(), shape.m);
}

std::vector<MarkedSumsWorld::SumPiece> MarkedSumsWorld::pieces(std::int32_t at, std::int32_t index,
                                                               std::uint64_t epoch, const SumUnit& unit) {
  const std::int32_t of = owner(index, unit.turn);
  Memory& memory = rank(at).workspace;
  const std::uint64_t begin = sums(at).marked_offset(of) + static_cast<std::uint64_t>(unit.unit) * kUnitBytes;
  std::vector<SumPiece> all;
  for_each_row(index, unit, [&](const Span& row) {
    const std::uint64_t inside =
        all.size() * static_cast<std::uint64_t>(plan(at).tile.columns) * 2;  // [unit rows, tile columns]
    const Stamp first =
        sum_stamp(epoch, of, unit.unit) + static_cast<Stamp>(memory.cells(static_cast<std::int64_t>(inside)));
    all.push_back({marked_.piece(at, memory, {begin + inside, row.bytes}), first});
  });
  return all;
}

// ---- the way out of finished units ----

class MarkedSumsWorld::Output final : public SumOutput {
 public:
  Output(MarkedSumsWorld& world, std::int32_t index, std::uint64_t epoch)
      : world_(world), index_(index), epoch_(epoch) {}

  /// The pieces come one by one, whatever the warp does meanwhile.
  void store(const SumUnit& unit, bool right) override {
    for (std::int32_t t = 1; t < world_.ranks_per_node(); ++t) {
      const std::int32_t target = world_.rank_at(0, world_.local_of(index_) + t);
      const std::vector<SumPiece> all = world_.pieces(target, index_, epoch_, unit);
      for (const SumPiece& piece : all) world_.marked_.begin_store(index_, piece.place);
      world_.scheduler_.spawn(index_, "stores of a unit", land(all, right));
      ++stored_;
    }
  }
  /// A launch ends when all its stores have been made.
  Task landed() { co_await world_.scheduler_.meet(landed_, stored_); }

 private:
  Task land(std::vector<SumPiece> all, bool right) {
    for (const SumPiece& piece : all) {
      co_await world_.scheduler_.step();
      world_.marked_.end_store(piece.place, piece.first, right);
    }
    world_.scheduler_.add(landed_, 1);
  }

  MarkedSumsWorld& world_;
  const std::int32_t index_;
  const std::uint64_t epoch_;
  std::uint64_t stored_ = 0;
  Word landed_{};
};

// ---- copies ----

Task MarkedSumsWorld::copy_units(std::int32_t index, std::uint64_t epoch) {
  Memory& memory = rank(index).workspace;
  MarkedData::Marks marks(marked_);
  const std::int32_t owners = ranks_per_node() - 1;
  UnitClaims claims(counts(index).copied, epoch, static_cast<std::uint32_t>(sums(index).units * owners),
                    static_cast<std::uint32_t>(multiplying_warps(index)));
  bool gave_up = false;
  co_await scheduler_.step();  // others claim in between
  while (const auto number = gave_up ? std::nullopt : claims.take()) {
    co_await scheduler_.step();
    const SumUnit unit = unit_of(index, *number % owners, *number / owners);
    if (unit.place.row >= rows_of(index, unit.turn)) continue;
    bool right = true;
    for (const auto& [place, first] : pieces(index, index, epoch, unit)) {
      gave_up = !has(Fault::kMarkedUnwaited) && !co_await scheduler_.wait(*place.come, 1);
      if (gave_up) break;
      right &= holds(index, epoch, memory, place.at, first, "a sum");
      co_await scheduler_.step();
      right &= holds(index, epoch, memory, place.at, first, "a sum");
      marks.begin(place);
    }
    if (!gave_up) copy(index, epoch, unit, right);
  }
  co_await scheduler_.step();
  if (has(Fault::kLateMarks)) {
    scheduler_.spawn(index, "late marks", finish_late(marks));
  } else {
    marks.finish();
  }
}

Task MarkedSumsWorld::finish_late(MarkedData::Marks marks) {
  co_await scheduler_.step();
  marks.finish();
}

/// All warps begin with sums, and those that have multiplied copy. Where slots are marked, the others do
/// neither.
Task MarkedSumsWorld::spare_warp(std::int32_t index, std::uint64_t epoch, const SpareWarp& warp) {
  Output output(*this, index, epoch);
  co_await sum(index, epoch, warp, output);
  if (warp.multiplied) co_await copy_units(index, epoch);
  co_await output.landed();
}

// ---- the end ----

std::string MarkedSumsWorld::check_sums() {
  for (std::int32_t index = 0; index < plan(0).reduce.world; ++index) {
    const auto copies = static_cast<std::uint64_t>(ar_plans_[static_cast<std::size_t>(index)].copies());
    if (counts(index).copied != settings_.launches * (copies + multiplying_warps(index)))
      return "copies of rank " + std::to_string(index) + " end at " + std::to_string(counts(index).copied);
  }
  return marked_.check();
}

}  // namespace mkernel::test

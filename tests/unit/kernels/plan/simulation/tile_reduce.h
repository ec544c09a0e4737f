// A product whose tiles are summed over ranks, as step machines: what kernels/cuda/reduce does with the plan,
// without the data. GEMM+RS is just that; GEMM+AR (gemm_ar.h) says what becomes of the sums.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/plan/tile_reduce_plan.h"
#include "tests/unit/kernels/plan/simulation/marks.h"
#include "tests/unit/kernels/plan/simulation/world.h"

namespace mkernel::test {

/// Units that a warp claims (kernels/cuda/reduce/claims.cuh): it holds the next one while it works on one.
class UnitClaims {
 public:
  UnitClaims(std::uint64_t& claimed, std::uint64_t epoch, std::uint32_t units, std::uint32_t warps)
      : claimed_(claimed), begin_(epoch * (units + warps)), units_(units), next_(claim()) {}

  std::optional<std::int32_t> take() {
    const std::uint32_t unit = next_;
    if (unit >= units_) return std::nullopt;
    next_ = claim();
    return static_cast<std::int32_t>(unit);
  }

 private:
  std::uint32_t claim() { return static_cast<std::uint32_t>(claimed_++ - begin_); }

  std::uint64_t& claimed_;
  std::uint64_t begin_;
  std::uint32_t units_, next_;
};

/// Stores that have begun and are not signalled yet.
class Stores {
 public:
  void add(Memory& memory, const Span& span, Stamp first, bool right) {
    begun_.push_back({&memory, span, first, right});
  }
  /// The release: they are visible.
  void finish() {
    for (const Begun& store : begun_) store.memory->end_write(store.span, store.first, store.right);
    begun_.clear();
  }

 private:
  struct Begun {
    Memory* memory;
    Span span;
    Stamp first;
    bool right;
  };
  std::vector<Begun> begun_;
};

struct SumUnit {
  std::int32_t node_turn = 0, turn = 0;  ///< whose: the turn of the owner's node, the owner's
  std::int32_t unit = 0, packed = 0;     ///< of the owner's; its place where units travel
  kernels::ReduceUnits::Place place;
};

/// How many warps a launch has, which the kernel's configuration says.
struct Warps {
  std::int32_t spare = 1;        ///< of CTA 0, beside the poller and inter_send
  std::int32_t multiplying = 2;  ///< of a CTA that computes: numbers 4 ..
};

/// A warp that has nothing else to do.
struct SpareWarp {
  std::int32_t number = 0;  ///< in its CTA
  bool multiplied = false;  ///< not of a CTA that only sums
};

/// What becomes of sums of own rows: an Output of sum_slots.cuh.
class SumOutput {
 public:
  virtual ~SumOutput() = default;
  /// Whether it must be flushed before the stores of another unit.
  virtual bool full() const { return false; }
  /// Beside c.
  virtual void store(const SumUnit&, bool /*right*/) {}
  virtual Task flush() { co_return; }
};

class TileReduceWorld : public World {
 public:
  /// `plans`: of every rank.
  TileReduceWorld(const GemmShape& shape, const kernels::Topology& topology,
                  const std::vector<kernels::TileReducePlan>& plans, const Warps& warps,
                  const Settings& settings)
      : TileReduceWorld(plans, shape, topology, warps, settings,
                        static_cast<std::int32_t>(plans[0].lanes())) {
    for (const auto& plan : plans_)
      add_rank_of(plan, plan.kernel_word_bytes(), plan.kernel_data_bytes(), plan.reduce.rows_of(plan.rank()));
  }

 protected:
  TileReduceWorld(const std::vector<kernels::TileReducePlan>& plans, const GemmShape& shape,
                  const kernels::Topology& topology, const Warps& warps, const Settings& settings,
                  std::int32_t lanes)
      : World(topology, settings, lanes), plans_(plans), columns_(shape.n), warps_(warps) {}
  void add_rank_of(const kernels::TileReducePlan& plan, std::uint64_t word_bytes, std::uint64_t data_bytes,
                   std::int64_t c_rows);

  /// The whole of a warp's part in the launch.
  virtual Task spare_warp(std::int32_t index, std::uint64_t epoch, const SpareWarp& warp);
  virtual std::int32_t senders() const { return 1; }
  virtual Task send(std::int32_t index, std::uint64_t epoch, std::int32_t sender);
  /// Where an owner's rows lie in this rank's c: of its own alone.
  virtual std::uint64_t c_offset(std::int32_t /*index*/, std::int32_t /*turn*/) const { return 0; }
  std::string check_counts() override;

  SumUnit unit_at(std::int32_t index, std::int32_t number) const;
  Task sum_units(std::int32_t index, std::uint64_t epoch, SumOutput& output);
  /// All sums of a warp: from slots with words, or from marked ones, where only warps sum that have
  /// multiplied.
  Task sum(std::int32_t index, std::uint64_t epoch, const SpareWarp& warp, SumOutput& output);
  Task put_partials(std::int32_t index, std::uint64_t epoch);

  const kernels::TileReducePlan& plan(std::int32_t index) const {
    return plans_[static_cast<std::size_t>(index)];
  }
  std::int32_t others(std::int32_t index) const { return plan(index).units.others; }
  /// Turn of the owner that a rank reduces for, by node turn.
  std::int32_t reduced(std::int32_t index, std::int32_t node_turn) const {
    return node_turn * plan(index).reduce.sources + plan(index).reduce.sources - 1;
  }
  std::int32_t owner(std::int32_t index, std::int32_t turn) const {
    return plan(index).owners[static_cast<std::size_t>(turn)];
  }
  std::int64_t rows_of(std::int32_t index, std::int32_t turn) const {
    return plan(index).reduce.rows_of(owner(index, turn));
  }
  std::int32_t packed_units(std::int32_t index, std::int32_t node_turn) const {
    return plan(index).packed_units(owner(index, reduced(index, node_turn)));
  }
  /// Whether the kernel is the one for several nodes; with the narrow tile it is that for one node as well.
  bool packs(std::int32_t index) const { return others(index) > 0 || plan(index).tile.columns <= 64; }
  std::int32_t multiplying_warps(std::int32_t index) const {
    return plan(index).compute_ctas * warps_.multiplying;
  }
  std::uint32_t spare_warps(std::int32_t index) const {
    return static_cast<std::uint32_t>(plan(index).reduce_ctas * warps_of_cta(index) - reserved(index) +
                                      multiplying_warps(index));
  }
  /// Stamp of a whole unit of an owner's, made by `maker`.
  Stamp unit_stamp(std::uint64_t epoch, Content content, std::int32_t maker, std::int32_t index_of_owner,
                   std::int32_t unit) {
    const std::int64_t cells = rank(0).workspace.cells(kUnitBytes);
    return stamp(epoch, content, maker,
                 (std::int64_t{index_of_owner} * plan(0).units.units() + unit) * cells);
  }
  /// For every row of a unit that its owner has: where it lies in [rows, columns] of 16 bits, and in the
  /// owner's.
  template <class Visit>
  void for_each_row(std::int32_t index, const SumUnit& unit, const Visit& visit) const {
    const auto& mine = plan(index);
    const std::int64_t end = std::min(rows_of(index, unit.turn), unit.place.row + mine.units.unit_rows);
    const std::int64_t column = std::int64_t{unit.place.column} * mine.tile.columns;
    const std::int64_t width = std::min(columns_ - column, std::int64_t{mine.tile.columns});
    for (std::int64_t row = unit.place.row; row < end; ++row)
      visit(Span{static_cast<std::uint64_t>(row * columns_ + column) * 2,
                 static_cast<std::uint64_t>(width) * 2});
  }

  static constexpr std::uint64_t kUnitBytes = kernels::PutPartialsPlan::kUnitBytes;

  /// Counts in a rank's device memory.
  struct Counts {
    std::uint64_t claimed = 0, copied = 0, forwarded = 0;
    std::deque<Word> staged;    ///< [node turn][chunk]
    std::deque<Word> finished;  ///< [chunk]
  };
  Counts& counts(std::int32_t index) { return counts_[static_cast<std::size_t>(index)]; }

  const std::vector<kernels::TileReducePlan> plans_;
  const std::int64_t columns_;
  const Warps warps_;

 private:
  using Part = kernels::TileReducePlan::Tile::Part;
  struct Cta {
    Word multiplied{}, stored{};  ///< tiles
    Word ended{};                 ///< roles
  };
  struct Staged;
  /// What a unit's sum waits for.
  struct Awaited {
    Word* word;
    std::uint64_t count;
  };

  std::int32_t reserved(std::int32_t index) const { return others(index) > 0 ? 1 + senders() : 1; }
  /// One that only sums.
  std::int32_t warps_of_cta(std::int32_t index) const { return warps_.spare + reserved(index); }
  std::int32_t ctas(std::int32_t index) const override {
    return plan(index).reduce_ctas + plan(index).compute_ctas;
  }
  std::uint64_t leavers(std::int32_t index) const override {
    return static_cast<std::uint64_t>(ctas(index) - 1 + warps_of_cta(index) - 1);
  }
  Word& ready(std::int32_t reducer, std::int32_t node_turn, std::int32_t source, std::int64_t tile) {
    return rank(reducer).workspace.word(plan(reducer).reduce.ready_offset(node_turn, source) +
                                        static_cast<std::uint64_t>(tile) * 8);
  }
  /// Who sums for the owner at `turn` on this node.
  std::int32_t reducer_of(std::int32_t index, std::int32_t turn) const {
    return rank_at(node_of(index), local_of(owner(index, turn)));
  }
  Word& staged(std::int32_t index, std::int32_t node_turn, std::int32_t chunk) {
    return counts(index).staged[static_cast<std::size_t>(node_turn * plan(index).most_chunks() + chunk)];
  }
  std::uint64_t slot(std::int32_t index, std::uint64_t epoch, std::int32_t node_turn, std::int32_t source) {
    return half_at(epoch, Fault::kOneHalf) + plan(index).reduce.slot_offset(node_turn, source);
  }
  std::uint64_t partial(std::int32_t index, std::uint64_t epoch, std::int32_t sender_turn) const {
    return half_at(epoch, Fault::kOnePartialsHalf) + plan(index).partials.partial_offset(sender_turn);
  }
  std::uint64_t staged_at(std::int32_t index, std::uint64_t epoch, std::int32_t node_turn) const {
    return half_at(epoch, Fault::kNone) + plan(index).partials.staged_offset(node_turn);
  }
  std::vector<Awaited> awaited(std::int32_t index, std::uint64_t epoch, std::int32_t node_turn,
                               std::int32_t tile, std::int32_t packed);
  void store_own(std::int32_t index, std::uint64_t epoch, const SumUnit& unit, bool right, SumOutput& output);
  bool summands_hold(std::int32_t index, std::uint64_t epoch, const SumUnit& unit);

  // Where slots are marked: marked_slots.cc.
  struct MarkedSum {
    bool made = false, right = true;
  };
  /// Of the slot of `source` at rank `index`; `row`: in [rows of the rank, columns].
  MarkedData::Piece piece(std::int32_t index, std::uint64_t epoch, std::int32_t source, const Span& row);
  Stamp tile_stamp(std::int32_t index, std::uint64_t epoch, std::int32_t source, const Span& row);
  Task store_marked_tile(std::int32_t index, std::uint64_t epoch, std::int32_t number,
                         std::int32_t in_cluster);
  Task sum_marked_unit(std::int32_t index, std::uint64_t epoch, const SumUnit& unit, MarkedData::Marks& marks,
                       MarkedSum& sum);
  Task sum_marked_units(std::int32_t index, std::uint64_t epoch, SumOutput& output);

  void begin_launch(std::int32_t index, std::uint64_t epoch) override;
  Task computing_cta(std::int32_t index, std::uint64_t epoch, std::int32_t cta);
  Task multiply(std::int32_t index, Cta& cta, std::int32_t tiles);
  Task store(std::int32_t index, std::uint64_t epoch, Cta& shared, std::int32_t cta, std::int32_t tiles);
  /// A CTA's tile into this rank's slots at the reducers of its owners, and then their words.
  Task store_tile(std::int32_t index, std::uint64_t epoch, std::int32_t number, std::int32_t in_cluster);
  std::vector<Span> rows_of_part(std::int32_t index, const kernels::TileReducePlan::Tile& tile,
                                 const Part& part) const;
  template <class Visit>
  void for_each_row(std::int32_t index, std::uint64_t epoch, const kernels::TileReducePlan::Tile& tile,
                    const Part& part, const Visit& visit);
  void begin_part(std::int32_t index, std::uint64_t epoch, const kernels::TileReducePlan::Tile& tile,
                  const Part& part);
  void end_part(std::int32_t index, std::uint64_t epoch, const kernels::TileReducePlan::Tile& tile,
                const Part& part);
  Task multiplying_warp(std::int32_t index, std::uint64_t epoch, Cta& cta, std::int32_t number,
                        std::int32_t tiles);
  Task reducing_cta(std::int32_t index, std::uint64_t epoch, std::int32_t cta);
  Task reducing_warp(std::int32_t index, std::uint64_t epoch, Cta& shared, bool first, std::int32_t number);
  Task exchange_empty(std::int32_t index, std::uint64_t epoch);

  std::deque<Counts> counts_;
  MarkedData slots_{scheduler_, settings_};
};

/// A sum for an owner on another node, which is counted for inter_send before the stores of the next unit.
struct TileReduceWorld::Staged {
  Stores stores{};
  Word* chunk = nullptr;
};

}  // namespace mkernel::test

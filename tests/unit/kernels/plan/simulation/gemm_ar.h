// GEMM+AR as step machines: what kernels/ops/gemm_ar/roles.cuh does with the plan, without the data.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/gemm_ar/plan.h"
#include "tests/unit/kernels/plan/simulation/tile_reduce.h"

namespace mkernel::test {

class GemmArWorld : public TileReduceWorld {
 public:
  /// `plans`: of every rank.
  GemmArWorld(const GemmShape& shape, const kernels::Topology& topology,
              const std::vector<kernels::GemmArPlan>& plans, const Warps& warps, const Settings& settings);

 protected:
  /// Without ranks.
  GemmArWorld(const std::vector<kernels::GemmArPlan>& plans, const GemmShape& shape,
              const kernels::Topology& topology, const Warps& warps, const Settings& settings);

  Task spare_warp(std::int32_t index, std::uint64_t epoch, const SpareWarp& warp) override;
  /// What is wrong with the counts of sums and copies after the last launch; empty: nothing.
  virtual std::string check_sums();

  const kernels::PushSumsPlan& sums(std::int32_t index) const {
    return ar_plans_[static_cast<std::size_t>(index)].sums;
  }
  Stamp sum_stamp(std::uint64_t epoch, std::int32_t of, std::int32_t unit) {
    return unit_stamp(epoch, Content::kSum, of, 0, unit);
  }
  SumUnit unit_of(std::int32_t index, std::int32_t turn, std::int32_t unit) const;
  /// A unit of another owner's into c.
  void copy(std::int32_t index, std::uint64_t epoch, const SumUnit& unit, bool right);

  const std::vector<kernels::GemmArPlan> ar_plans_;

 private:
  /// The way of finished units out, one warp's: to the other ranks of the node, and, of own units, to where
  /// they are put from. Several are signalled at a time.
  class UnitFanOut final : public SumOutput {
   public:
    UnitFanOut(GemmArWorld& world, std::int32_t index, std::uint64_t epoch);
    bool full() const override { return pending_.size() == most_pending_; }
    void store(const SumUnit& unit, bool right) override;
    Task flush() override;
    /// A unit to the other ranks of the node.
    void push(const SumUnit& unit, bool right);

   private:
    GemmArWorld& world_;
    const std::int32_t index_;
    const std::uint64_t epoch_;
    std::size_t most_pending_;
    Stores stores_;
    std::vector<std::pair<std::int32_t, std::int32_t>> pending_;  ///< owner, unit
    Word* chunk_ = nullptr;                                       ///< of the own unit that is pending
  };

  std::string check_counts() override;
  std::int32_t senders() const override { return 2; }
  Task send(std::int32_t index, std::uint64_t epoch, std::int32_t sender) override;
  std::uint64_t c_offset(std::int32_t index, std::int32_t turn) const override {
    return static_cast<std::uint64_t>(plan(index).reduce.first_row(owner(index, turn)) * columns_) * 2;
  }

  Task put_sums(std::int32_t index, std::uint64_t epoch);
  Task forward_units(std::int32_t index, std::uint64_t epoch);
  Task copy_units(std::int32_t index, std::uint64_t epoch);

  std::uint64_t sums_at(std::int32_t index, std::uint64_t epoch, std::int32_t of, std::int32_t packed) const {
    return half_at(epoch, Fault::kNone) + sums(index).sums_offset(of) +
           static_cast<std::uint64_t>(packed) * kUnitBytes;
  }
  Word& summed(std::int32_t index, std::int32_t of, std::int32_t unit) {
    return rank(index).workspace.word(sums(index).summed_offset(of) + static_cast<std::uint64_t>(unit) * 8);
  }
  bool sum_holds(std::int32_t index, std::uint64_t epoch, const SumUnit& unit);
};

}  // namespace mkernel::test

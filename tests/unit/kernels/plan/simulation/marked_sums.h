// GEMM+AR on one node whose owners share tiles, as step machines: finished sums travel as marked data
// (plan/push_sums_plan.h), and partials too where the plan says so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/gemm_ar/plan.h"
#include "tests/unit/kernels/plan/simulation/gemm_ar.h"
#include "tests/unit/kernels/plan/simulation/marks.h"

namespace mkernel::test {

/// A piece is the row of a unit.
class MarkedSumsWorld final : public GemmArWorld {
 public:
  MarkedSumsWorld(const GemmShape& shape, const kernels::Topology& topology,
                  const std::vector<kernels::GemmArPlan>& plans, const Warps& warps,
                  const Settings& settings);

 private:
  /// Stores of a warp's finished units at the other ranks.
  class Output;
  struct SumPiece {
    MarkedData::Piece place;
    Stamp first;
  };

  Task spare_warp(std::int32_t index, std::uint64_t epoch, const SpareWarp& warp) override;
  std::string check_sums() override;

  Task copy_units(std::int32_t index, std::uint64_t epoch);
  Task finish_late(MarkedData::Marks marks);
  /// Of a unit of an owner's, at rank `at`; `index`: any rank that has the owner at the unit's turn.
  std::vector<SumPiece> pieces(std::int32_t at, std::int32_t index, std::uint64_t epoch, const SumUnit& unit);

  MarkedData marked_{scheduler_, settings_};
};

}  // namespace mkernel::test

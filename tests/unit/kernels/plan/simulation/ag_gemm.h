// AG+GEMM as step machines: what kernels/ops/ag_gemm/roles.cuh does with the plan, without the data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/ag_gemm/plan.h"
#include "tests/unit/kernels/plan/simulation/fan_out.h"

namespace mkernel::test {

class AgGemmWorld : public FanOutWorld {
 public:
  /// `plans`: of every rank.
  AgGemmWorld(const GemmShape& shape, const kernels::Topology& topology,
              const std::vector<kernels::AgGemmPlan>& plans, const Settings& settings)
      : FanOutWorld(topology, settings, static_cast<std::int32_t>(plans[0].lanes())),
        plans_(plans),
        shape_(shape) {
    const std::uint64_t cell = shape.k % 8 == 0 && shape.n % 8 == 0 ? 16 : 2;
    for (const auto& plan : plans)
      add_rank(plan.gather.word_bytes(), plan.gather.data_bytes(),
               static_cast<std::uint64_t>(shape.m * shape.n) * 2, cell);
  }

 private:
  const kernels::AgGemmPlan& plan(std::int32_t index) const {
    return plans_[static_cast<std::size_t>(index)];
  }
  const kernels::PushGatherPlan& gather() const { return plans_[0].gather; }
  std::int32_t ctas(std::int32_t index) const override {
    return plan(index).comm_ctas + plan(index).compute_ctas;
  }
  std::int32_t comm_ctas(std::int32_t index) const override { return plan(index).comm_ctas; }
  kernels::StreamTurns order(std::int32_t index) const {
    return {plan(index).stores() == 0 ? 0 : gather().chunks(index), rails(), gather().max_chunks()};
  }
  std::int32_t turns(std::int32_t index) const override { return order(index).turns(); }
  Turn turn(std::int32_t index, std::int32_t number) const override { return order(index).turn(number); }
  /// The node before this one begins with it.
  Chunk chunk_of(std::int32_t index, const Turn& turn) const override {
    return {turn.stream == 0 ? index : rail(index, rails() - turn.stream), 0, turn.chunk};
  }
  std::int32_t chunks_of(std::int32_t source) const override { return gather().chunks(source); }
  Word& ready(std::int32_t index, const Chunk& chunk) override {
    return rank(index).workspace.word(gather().ready_offset(chunk.source) + std::uint64_t{8} * chunk.chunk);
  }
  std::uint64_t ready_count(std::uint64_t epoch) const override { return gather().count(epoch); }
  std::uint64_t arrivals(std::uint64_t epoch, const Chunk& chunk) const override {
    return epoch * static_cast<std::uint64_t>(chunks_of(chunk.source)) +
           static_cast<std::uint64_t>(chunk.chunk) + 1;
  }
  bool keeps_own(std::int32_t index) const override { return plan(index).stores() > plan(index).steps.near; }
  std::uint64_t half(std::uint64_t epoch) const { return half_at(epoch, Fault::kOneHalf); }
  /// Whose rows lie in rows [begin, end) of a slab.
  std::vector<std::int32_t> sources_of(std::int32_t slab, const Range& rows) const;
  Stamp row_stamp(const Memory& memory, std::uint64_t epoch, std::int32_t source, std::int64_t row,
                  std::int32_t part) const {
    const kernels::RowParts& parts = gather().row;
    return stamp(epoch, Content::kRows, source, memory.cells(row * parts.row_bytes + parts.begin(part)));
  }
  /// The same of a row of a slab.
  Stamp slab_stamp(const Memory& memory, std::uint64_t epoch, std::int32_t slab, std::int64_t row,
                   std::int32_t part) const {
    const std::int32_t source = sources_of(slab, {row, row + 1}).front();
    return row_stamp(memory, epoch, source, row - gather().row_in_slab(source), part);
  }

  void for_each_row(std::int32_t index, std::uint64_t epoch, const Chunk& chunk, std::int32_t share,
                    const VisitRow& visit) override;
  Task inter_send(Pushing& shared) override;
  Task wait_at_end(std::int32_t index, std::uint64_t epoch) override;
  Task compute(std::int32_t index, std::uint64_t epoch, std::int32_t cta) override;
  Task compute_tiles(std::int32_t index, std::uint64_t epoch, std::int32_t cta, bool tail);
  Task multiply(std::int32_t index, std::uint64_t epoch, kernels::ArrivalSteps::Place block,
                std::int32_t row_of_block, Range columns);
  std::string check_counts() override;

  const std::vector<kernels::AgGemmPlan>& plans_;
  const GemmShape shape_;
};

}  // namespace mkernel::test

// AG+GEMM as step machines: what kernels/ops/ag_gemm/roles.cuh and kernels/cuda/comm/fan_out.cuh do with the
// plan, without the data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/ag_gemm/plan.h"
#include "kernels/plan/push_gather_plan.h"
#include "tests/unit/kernels/plan/simulation/world.h"

namespace mkernel::test {

class AgGemmWorld : public World {
 public:
  /// `plans`: of every rank. `stages`: chunks that a pushing CTA may have loaded and not stored.
  AgGemmWorld(const GemmShape& shape, const kernels::Topology& topology,
              const std::vector<kernels::AgGemmPlan>& plans, const Settings& settings)
      : World(topology, settings, static_cast<std::int32_t>(plans[0].lanes())),
        plans_(plans),
        shape_(shape),
        stages_(settings.seed % 2 == 0 ? 1 : 12) {
    const std::uint64_t cell = shape.k % 8 == 0 && shape.n % 8 == 0 ? 16 : 2;
    for (const auto& plan : plans)
      add_rank(plan.gather.word_bytes(), plan.gather.data_bytes(),
               static_cast<std::uint64_t>(shape.m * shape.n) * 2, cell);
  }

 private:
  using Turn = kernels::StreamTurns::Turn;
  static constexpr std::uint64_t kStorers = 3;

  /// What the roles of a pushing CTA share.
  struct Pushing {
    std::int32_t rank, share;
    std::uint64_t epoch;
    Word loaded{}, issued{}, freed{};        ///< chunks: in a stage, on their way, whose stage is free again
    Word ended{};                            ///< roles
    std::uint64_t lost = ~std::uint64_t{0};  ///< the chunk that did not come, nor anything after it
  };

  const kernels::AgGemmPlan& plan(std::int32_t index) const {
    return plans_[static_cast<std::size_t>(index)];
  }
  std::int32_t ctas(std::int32_t index) const override {
    return plan(index).comm_ctas + plan(index).compute_ctas;
  }
  std::uint64_t leavers(std::int32_t index) const override {
    return static_cast<std::uint64_t>(ctas(index) - 1) + warps_of_first(index);
  }

  Word& ready(std::int32_t index, std::int32_t source, std::int32_t chunk) {
    return rank(index).workspace.word(plan(index).gather.ready_offset(source) + std::uint64_t{8} * chunk);
  }
  Scheduler::Wait wait_chunk(std::int32_t index, std::uint64_t epoch, std::int32_t source,
                             std::int32_t chunk) {
    return scheduler_.wait(ready(index, source, chunk), plan(index).gather.count(epoch));
  }
  std::uint64_t slab(std::int32_t index, std::uint64_t epoch, std::int32_t source) const {
    return half_at(epoch, Fault::kOneHalf) + plan(index).gather.slab_offset(source);
  }
  /// Rail peers from the next node on; those whose rows come here, in the order in which they come.
  std::int32_t rail(std::int32_t index, std::int32_t i) const {
    return rank_at(node_of(index) + 1 + i, local_of(index));
  }
  std::int32_t source_of(std::int32_t index, const Turn& turn) const {
    return turn.stream == 0 ? index : rail(index, plan(index).rails() - turn.stream);
  }

  /// Chunks of all streams in the order in which they are pushed, without those that a stream does not have.
  std::vector<Turn> turns(std::int32_t index) const {
    const auto& gather = plan(index).gather;
    const kernels::StreamTurns order{plan(index).stores() == 0 ? 0 : gather.chunks(index),
                                     plan(index).rails(), gather.max_chunks()};
    std::vector<Turn> all;
    for (std::int32_t i = 0; i < order.turns(); ++i) {
      const Turn turn = order.turn(i);
      if (turn.chunk < gather.chunks(source_of(index, turn))) all.push_back(turn);
    }
    return all;
  }

  /// Rows of a share of a chunk, of the source's.
  Range rows_of_share(std::int32_t index, std::int32_t source, std::int32_t chunk, std::int32_t share) const {
    const auto& gather = plan(index).gather;
    const std::int64_t first = chunk / gather.row.parts * std::int64_t{gather.block_rows};
    const auto rows = static_cast<std::int32_t>(
        std::clamp<std::int64_t>(gather.rows_of(source) - first, 0, gather.block_rows));
    return {first + rows * share / gather.shares, first + rows * (share + 1) / gather.shares};
  }
  /// One row's part of a chunk: where it lies in the source's slab, and whose it is.
  template <class Visit>
  void for_each_row(std::int32_t index, std::uint64_t epoch, std::int32_t source, std::int32_t chunk,
                    const Range& rows, const Visit& visit) {
    const auto& gather = plan(index).gather;
    const std::int32_t part = chunk % gather.row.parts;
    const std::int64_t first = chunk / gather.row.parts * std::int64_t{gather.block_rows};
    const Memory& memory = rank(index).workspace;
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      const auto bytes = static_cast<std::uint64_t>(gather.row.bytes(part));
      const std::uint64_t at = slab(index, epoch, source) + gather.chunk_offset(source, chunk) +
                               static_cast<std::uint64_t>(row - first) * bytes;
      visit(Span{at, bytes}, row_stamp(memory, epoch, index, source, row, part));
    }
  }
  Stamp row_stamp(const Memory& memory, std::uint64_t epoch, std::int32_t index, std::int32_t source,
                  std::int64_t row, std::int32_t part) const {
    const kernels::RowParts& parts = plan(index).gather.row;
    return stamp(epoch, Content::kRows, source, memory.cells(row * parts.row_bytes + parts.begin(part)));
  }

  void begin_launch(std::int32_t index, std::uint64_t epoch) override {
    for (std::int32_t cta = 0; cta < ctas(index); ++cta) {
      if (cta < plan(index).comm_ctas) {
        scheduler_.spawn(index, "pushing CTA", pushing_cta(index, epoch, cta));
      } else {
        scheduler_.spawn(index, "computing CTA", computing_cta(index, epoch, cta));
      }
    }
  }

  Task computing_cta(std::int32_t index, std::uint64_t epoch, std::int32_t cta) {
    co_await compute(index, epoch, cta, false);
    co_await compute(index, epoch, cta, true);
    end_cta(index);
  }

  Task pushing_cta(std::int32_t index, std::uint64_t epoch, std::int32_t cta) {
    Pushing shared{index, cta, epoch};
    const bool first = cta == 0, sends = first && plan(index).rails() > 0;
    scheduler_.spawn(index, "load", load(shared));
    for (std::uint64_t storer = 0; storer < kStorers; ++storer)
      scheduler_.spawn(index, "store", store(shared, storer));
    if (sends) scheduler_.spawn(index, "inter_send", inter_send(shared));
    co_await scheduler_.meet(shared.ended, 1 + kStorers + (sends ? 1 : 0));
    if (first) {
      cta_over(index);
    } else {
      const bool late = plan(index).assignment.late > 0 && cta >= plan(index).tile.cluster;
      if (late) co_await compute(index, epoch, cta, false);
      end_cta(index);
    }
  }

  /// Warps of CTA 0 that have something to do, but for the poller; they count themselves out.
  std::uint64_t warps_of_first(std::int32_t index) const {
    return 1 + kStorers + (plan(index).rails() > 0 ? 1 : 0);
  }
  /// A warp of a pushing CTA is through.
  void end_warp(Pushing& shared) {
    if (shared.share == 0) count_out(shared.rank);
    scheduler_.add(shared.ended, 1);
  }

  Task load(Pushing& shared);
  Task store(Pushing& shared, std::uint64_t storer);
  Task signal(Pushing& shared, std::int32_t source, std::int32_t chunk);
  Task wait_empty(std::int32_t index, std::uint64_t epoch);
  Task inter_send(Pushing& shared);
  Task compute(std::int32_t index, std::uint64_t epoch, std::int32_t cta, bool tail);
  Task multiply(std::int32_t index, std::uint64_t epoch, kernels::ArrivalSteps::Place step,
                std::int32_t in_cluster, Range columns);
  std::string check_counts() override;

  const std::vector<kernels::AgGemmPlan>& plans_;
  const GemmShape shape_;
  const std::uint64_t stages_;
};

}  // namespace mkernel::test

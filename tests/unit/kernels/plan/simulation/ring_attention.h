// Ring attention as step machines: what kernels/ops/ring_attention/roles.cuh does with the plan, without
// the data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/ring_attention/gpu_plan.h"
#include "tests/unit/kernels/plan/simulation/fan_out.h"

namespace mkernel::test {

class RingAttentionWorld : public FanOutWorld {
 public:
  /// `plans`: of every rank.
  RingAttentionWorld(const AttentionShape& shape, const kernels::Topology& topology,
                     const std::vector<kernels::RingGpuPlan>& plans, const Settings& settings)
      : RingAttentionWorld(shape, topology, settings, plans, plans[0].lanes()) {
    for (const auto& plan : plans) {
      const std::int64_t rows = shape.batch * shape.heads * plan.gather.positions(plan.gather.rank);
      add_rank(plan.gather.word_bytes(), plan.gather.data_bytes(),
               static_cast<std::uint64_t>(rows * head_bytes()), kCellBytes);
    }
  }

 protected:
  /// Without memory.
  RingAttentionWorld(const AttentionShape& shape, const kernels::Topology& topology, const Settings& settings,
                     const std::vector<kernels::RingGpuPlan>& plans, std::uint32_t lanes)
      : FanOutWorld(topology, settings, static_cast<std::int32_t>(lanes)),
        plans_(plans),
        shape_(shape),
        next_task_(plans.size()) {}

  static constexpr std::int32_t kTensors = kernels::KvGatherPlan::kTensors;
  static constexpr std::uint64_t kCellBytes = kernels::kLentAlignment;  ///< divides what a head has of a row

  /// AttentionCounters::next_task: CTA 0 sets the other one back.
  struct NextTask {
    std::int32_t of_epoch[2] = {};
  };
  /// By source and tensor, the chunk behind the last one that a CTA has seen in a launch.
  using Seen = std::vector<std::int32_t>;
  /// Positions of one head of keys or values.
  struct HeadRows {
    std::int32_t source, tensor, head;
    Range rows;
  };

  const kernels::RingGpuPlan& plan(std::int32_t index) const {
    return plans_[static_cast<std::size_t>(index)];
  }
  const kernels::KvGatherPlan& gather() const { return plans_[0].gather; }
  std::int64_t head_bytes() const { return shape_.head_dim * 2; }
  const AttentionShape& shape() const { return shape_; }
  /// Of this launch: the next task of a rank.
  std::int32_t take_task(std::int32_t index, std::uint64_t epoch) {
    return next_task_[static_cast<std::size_t>(index)].of_epoch[epoch & 1]++;
  }
  Task meet(std::int32_t index, std::uint64_t epoch, HeadRows rows, Seen& seen, bool& right);
  void begin_launch(std::int32_t index, std::uint64_t epoch) override;
  Task wait_at_end(std::int32_t index, std::uint64_t epoch) override;
  std::string check_counts() override;

 private:
  std::int32_t ctas(std::int32_t index) const override { return plan(index).ctas; }
  std::int32_t comm_ctas(std::int32_t index) const override { return plan(index).comm_ctas; }
  bool first_computes(std::int32_t index) const override { return plan(index).idle_ctas() == 0; }
  std::int32_t turns(std::int32_t) const override { return gather().turns(); }
  Turn turn(std::int32_t, std::int32_t number) const override {
    const auto [stream, chunk, target] = gather().turn(number);
    return {stream, chunk};
  }
  std::int32_t target(std::int32_t, std::int32_t number) const override {
    return gather().turn(number).target;
  }
  /// The node before this one begins with it.
  Chunk chunk_of(std::int32_t index, const Turn& turn) const override {
    const std::int32_t group = turn.stream / kTensors;
    return {group == 0 ? index : rail(index, rails() - group), turn.stream % kTensors, turn.chunk};
  }
  std::int32_t chunks_of(std::int32_t) const override { return gather().chunks(); }
  Word& ready(std::int32_t index, const Chunk& chunk) override {
    return rank(index).workspace.word(gather().ready_offset(chunk.source, chunk.tensor) +
                                      std::uint64_t{8} * chunk.chunk);
  }
  std::uint64_t ready_count(std::uint64_t epoch) const override { return gather().count(epoch); }
  std::uint64_t arrivals(std::uint64_t epoch, const Chunk& chunk) const override {
    return gather().arrivals(epoch, chunk.tensor, chunk.chunk);
  }
  std::uint64_t slab(std::uint64_t epoch, std::int32_t source, std::int32_t tensor) const {
    return half_at(epoch, Fault::kOneHalf) + gather().slab_offset(source, tensor);
  }
  /// Of a row of the slab.
  Stamp row_stamp(const Memory& memory, std::uint64_t epoch, std::int32_t source, std::int32_t tensor,
                  std::int64_t row) const {
    const std::int64_t rows = gather().rows(source);
    return stamp(epoch, Content::kRows, source, memory.cells((tensor * rows + row) * gather().row_bytes));
  }

  void for_each_row(std::int32_t index, std::uint64_t epoch, const Chunk& chunk, std::int32_t share,
                    const VisitRow& visit) override;
  Task inter_send(Pushing& shared) override;
  Task compute(std::int32_t index, std::uint64_t epoch, std::int32_t cta) override;
  Task sweep(std::int32_t index, std::uint64_t epoch, kernels::AttentionTasks::Place place, Seen& seen);

  const std::vector<kernels::RingGpuPlan>& plans_;
  const AttentionShape shape_;
  std::vector<NextTask> next_task_;
};

}  // namespace mkernel::test

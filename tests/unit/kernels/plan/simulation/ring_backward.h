// The backward pass of ring attention as step machines: what
// kernels/ops/ring_attention/ring_backward_roles.cuh does with the plan, without the data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/ring_attention/ring_backward_plan.h"
#include "tests/unit/kernels/plan/simulation/ring_attention.h"

namespace mkernel::test {

/// Those that the forward pass is played with, alive before it is.
struct ForwardPlans {
  std::vector<kernels::RingGpuPlan> forward;
};

class RingBackwardWorld : private ForwardPlans, public RingAttentionWorld {
 public:
  /// `plans`: of every rank.
  RingBackwardWorld(const AttentionShape& shape, const kernels::Topology& topology,
                    const std::vector<kernels::RingBackwardPlan>& plans, const Settings& settings);

 private:
  /// Memory of a rank alone.
  struct Scratch {
    std::vector<Word> added;         ///< [heads of queries][tiles of queries]
    std::int32_t next_unit[2] = {};  ///< as AttentionBackwardCounters
  };

  const kernels::RingBackwardPlan& backward(std::int32_t index) const {
    return backward_[static_cast<std::size_t>(index)];
  }
  Scratch& scratch(std::int32_t index) { return scratch_[static_cast<std::size_t>(index)]; }
  const kernels::KeyPartialsPlan& partials() const { return backward_[0].partials; }
  Word& added(std::int32_t index, std::int32_t head, std::int32_t tile) {
    const auto at = static_cast<std::size_t>(head * backward(index).tasks.query_tiles() + tile);
    return scratch(index).added[at];
  }
  Word& arrived(std::int32_t owner, std::int32_t writer, std::int32_t unit) {
    return rank(owner).workspace.word(partials().word_offset(writer, unit));
  }
  Span slot(std::uint64_t epoch, std::int32_t writer, std::int32_t unit) const {
    return {half_at(epoch, Fault::kOneHalf) + partials().slot_offset(writer, unit), partials().unit_bytes()};
  }
  Stamp slot_stamp(std::int32_t owner, std::uint64_t epoch, std::int32_t writer, std::int32_t unit) {
    const std::int64_t first = (std::int64_t{owner} * partials().max_units + unit);
    return stamp(epoch, Content::kPartialTile, writer,
                 first * rank(owner).workspace.cells(static_cast<std::int64_t>(partials().unit_bytes())));
  }

  void begin_launch(std::int32_t index, std::uint64_t epoch) override;
  Task compute(std::int32_t index, std::uint64_t epoch, std::int32_t cta) override;
  Task tile_of_keys(std::int32_t index, std::uint64_t epoch, kernels::RingBackwardTasks::Place place,
                    Seen& seen);
  Task store_keys(std::int32_t index, std::uint64_t epoch, kernels::RingBackwardTasks::Place place,
                  bool right);
  Task finish(std::int32_t index, std::uint64_t epoch);
  Task round_queries(std::int32_t index, std::uint64_t epoch, std::int32_t unit);
  Task sum_keys(std::int32_t index, std::uint64_t epoch, std::int32_t piece);
  std::string check_counts() override;

  const std::vector<kernels::RingBackwardPlan>& backward_;
  std::vector<Scratch> scratch_;
};

}  // namespace mkernel::test

// The backward pass of ring attention as step machines: what
// kernels/ops/ring_attention/backward/roles.cuh does with the plan, without the data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/ring_attention/backward/plan.h"
#include "tests/unit/kernels/plan/simulation/ring_attention.h"

namespace mkernel::test {

/// Those that the forward pass is played with, alive before it is.
struct ForwardPlans {
  std::vector<kernels::RingGpuPlan> forward;
};

class RingBackwardWorld : private ForwardPlans, public RingAttentionWorld {
  using KeyPartialsPlan = kernels::KeyPartialsPlan;

 public:
  /// `plans`: of every rank.
  RingBackwardWorld(const AttentionShape& shape, const kernels::Topology& topology,
                    const std::vector<kernels::RingBackwardPlan>& plans, const Settings& settings);

 private:
  static constexpr std::uint64_t kSummingWarps = 2;  ///< of a CTA that adds up what is put

  /// Memory of a rank alone.
  struct Scratch {
    std::vector<Word> added;         ///< [heads of queries][tiles of queries]
    std::int32_t next_unit[2] = {};  ///< as AttentionBackwardCounters
    std::int32_t next_put[2] = {};   ///< likewise
    std::vector<Word> staged;        ///< [distance - 1][chunk]: units that are staged
  };

  const kernels::RingBackwardPlan& backward(std::int32_t index) const {
    return backward_[static_cast<std::size_t>(index)];
  }
  Scratch& scratch(std::int32_t index) { return scratch_[static_cast<std::size_t>(index)]; }
  const KeyPartialsPlan& partials() const { return backward_[0].partials; }
  Word& added(std::int32_t index, std::int32_t head, std::int32_t tile) {
    const auto at = static_cast<std::size_t>(head * backward(index).tasks.query_tiles() + tile);
    return scratch(index).added[at];
  }
  const kernels::PutKeyPartialsPlan& puts() const { return backward_[0].puts; }
  /// Who adds up what the writer's node has of the owner's keys.
  std::int32_t reducer(std::int32_t writer, std::int32_t owner) const {
    return rank_at(node_of(writer), local_of(owner));
  }
  std::int32_t slot_of(std::int32_t writer, std::int32_t owner) const {
    return kernels::key_slot(topology_, static_cast<std::uint32_t>(writer),
                             static_cast<std::uint32_t>(owner));
  }
  Word& arrived(std::int32_t owner, std::int32_t writer, std::int32_t unit) {
    const std::int32_t slot = slot_of(writer, owner);
    return rank(reducer(writer, owner)).workspace.word(partials().word_offset(slot, unit));
  }
  Span slot(std::uint64_t epoch, std::int32_t owner, std::int32_t writer, std::int32_t unit) const {
    const std::int32_t slot = slot_of(writer, owner);
    return {half_at(epoch, Fault::kOneHalf) + partials().slot_offset(slot, unit), partials().unit_bytes()};
  }
  Span staged(std::uint64_t epoch, std::int32_t distance, std::int32_t packed) const {
    return {half_at(epoch, Fault::kOneHalf) + puts().staged_offset(distance, packed), puts().unit_bytes};
  }
  Span partial(std::uint64_t epoch, std::int32_t distance, std::int32_t packed) const {
    return {half_at(epoch, Fault::kOneHalf) + puts().partial_offset(distance, packed), puts().unit_bytes};
  }
  Word& staged_count(std::int32_t index, std::int32_t distance, std::int32_t chunk) {
    const std::int32_t at = (distance - 1) * backward(index).most_put_chunks() + chunk;
    return scratch(index).staged[static_cast<std::size_t>(at)];
  }
  /// Of what `from`, a writer or the reducer of a node, has of a unit.
  Stamp unit_stamp(std::int32_t owner, std::uint64_t epoch, Content content, std::int32_t from,
                   std::int32_t unit) {
    const std::int64_t first = (std::int64_t{owner} * partials().max_units + unit);
    return stamp(epoch, content, from,
                 first * rank(owner).workspace.cells(static_cast<std::int64_t>(partials().unit_bytes())));
  }

  void begin_launch(std::int32_t index, std::uint64_t epoch) override;
  std::uint64_t besides(std::int32_t index, std::int32_t share) const override {
    return share < backward(index).sum_ctas ? kSummingWarps + (share == 0 ? 1 : 0) : 0;
  }
  Task beside(Pushing& shared, std::uint64_t number) override;
  Task compute(std::int32_t index, std::uint64_t epoch, std::int32_t cta) override;
  Task tile_of_keys(std::int32_t index, std::uint64_t epoch, kernels::RingBackwardTasks::Place place,
                    Seen& seen);
  Task store_keys(std::int32_t index, std::uint64_t epoch, kernels::RingBackwardTasks::Place place,
                  bool right);
  Task sum_put_keys(std::int32_t index, std::uint64_t epoch);
  Task sum_put_unit(std::int32_t index, std::uint64_t epoch, std::int32_t number, bool& gave_up);
  Task put_key_sums(std::int32_t index, std::uint64_t epoch);
  Task put_key_chunk(std::int32_t index, std::uint64_t epoch, std::int32_t distance, std::int32_t chunk,
                     bool& gave_up);
  Task finish(std::int32_t index, std::uint64_t epoch);
  Task round_queries(std::int32_t index, std::uint64_t epoch, std::int32_t unit);
  Task sum_keys(std::int32_t index, std::uint64_t epoch, std::int32_t number);
  Task meet_partials(std::int32_t index, std::uint64_t epoch, std::int32_t owner, std::int32_t part,
                     std::int32_t unit, bool& right);
  Task meet_node_sums(std::int32_t index, std::uint64_t epoch, std::int32_t head, std::int32_t key_unit,
                      bool& right);
  std::string check_puts();
  std::string check_counts() override;

  const std::vector<kernels::RingBackwardPlan>& backward_;
  std::vector<Scratch> scratch_;
};

}  // namespace mkernel::test

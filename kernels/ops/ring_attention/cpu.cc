// Ring attention on the cpu executor: threads play the CTAs of roles.cuh, on the same plan. See
// README.md.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/launch/binding.h"
#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/gather_cpu.h"
#include "kernels/ops/ring_attention/plan.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/cuts.h"
#include "kernels/plan/gemm_shape.h"
#include "kernels/plan/ring_sequences.h"

namespace mkernel::kernels {
namespace {

/// The compute threads of one launch.
class RingAttentionLaunch {
 public:
  /// `slots`: the list of tasks of packed sequences; else, and when the launch is refused, none.
  RingAttentionLaunch(const RingPlan& plan, const CpuKvGather& gathered, const AttentionArguments& arguments,
                      const std::vector<AttentionSlot>& slots, const Launch& launch)
      : plan_(plan),
        gathered_(gathered),
        arguments_(arguments),
        launch_(launch),
        slots_(slots),
        work_(plan.packed() ? packed_tasks() : plan.tasks.tasks()) {}

  Status compute() {
    AttentionScratch scratch(plan_.shape.head_dim);
    for (std::int32_t i = work_.next(); i < work_.all() && !launch_.roles.stop(); i = work_.next())
      MK_RETURN_IF_ERROR(sweep(plan_.packed() ? packed_tile(i) : tile(i), scratch));
    return {};
  }

 private:
  /// Queries of one head, and their sequence: of `length` positions, all ranks together, whose rows begin at
  /// row `first` of every rank.
  struct Tile {
    std::int64_t batch, head;
    Range rows;  ///< of this rank
    std::int64_t first, length;
  };

  Tile tile(std::int32_t task) const {
    const AttentionTasks::Place place = plan_.tasks.place(task);
    return {place.batch, place.head, plan_.query_rows(place.tile), 0, plan_.shape.sequence};
  }
  std::int32_t sequences() const { return static_cast<std::int32_t>(slots_.size()) - 1; }
  std::int32_t packed_tasks() const {
    return slots_.empty()
               ? 0
               : ring_tasks(slots_.data(), sequences(), static_cast<std::int32_t>(plan_.shape.heads));
  }
  Tile packed_tile(std::int32_t task) const {
    const bool causal = plan_.shape.causal;
    const RingPlace place =
        ring_place(slots_.data(), sequences(), static_cast<std::int32_t>(plan_.shape.heads), causal, task);
    const AttentionSequence& sequence = slots_[static_cast<std::size_t>(place.slot)].sequence;
    const std::int64_t first = sequence.query_first;
    const RingTile at = ring_tile(sequence.queries, causal, place.tile);
    return {0,
            place.head,
            {first + at.query, first + at.query_end},
            first,
            std::int64_t{sequence.queries} * plan_.gather.world};
  }

  /// Where the rows of a rank stand in the tile's sequence.
  Positions positions(const Tile& tile, std::int32_t source) const {
    return held_positions(tile.length, plan_.shape.causal, plan_.gather.world, source);
  }

  /// A tile of queries meets all keys of its sequence.
  Status sweep(const Tile& tile, AttentionScratch& scratch) const {
    const AttentionShape& shape = plan_.shape;
    const std::int64_t held = plan_.gather.positions(plan_.gather.rank);
    const auto of_tile = [&](const void* tensor) {
      return head_rows(shape, tensor, shape.heads, held, tile.batch, tile.head).from(tile.rows.begin);
    };
    const auto kv_head = static_cast<std::int32_t>(tile.batch * shape.kv_heads + tile.head / plan_.group());
    AttentionTile state(positions(tile, plan_.gather.rank).at(tile.rows.begin - tile.first), tile.rows.size(),
                        shape.head_dim, shape.causal);
    state.begin(of_tile(arguments_.q), attention_scale(shape));
    for (std::int32_t step = 0; step < plan_.gather.world; ++step)
      MK_RETURN_IF_ERROR(attend(tile, plan_.gather.source(step), kv_head, state, scratch));
    if (arguments_.lse != nullptr) {
      const std::int64_t head = tile.batch * shape.heads + tile.head;
      state.log_sum_exp(arguments_.lse + head * held + tile.rows.begin);
    }
    const HeadRows out = of_tile(arguments_.out);
    state.finish(const_cast<void*>(out.data), out.stride, shape.dtype);
    return {};
  }

  /// Chunk by chunk, as they come; of each the rows of the tile's sequence.
  Status attend(const Tile& tile, std::int32_t source, std::int32_t head, AttentionTile& state,
                AttentionScratch& scratch) const {
    const KvGatherPlan& gather = plan_.gather;
    const Positions held = positions(tile, source);
    const HeadRows keys = gathered_.rows(source, 0, head), values = gathered_.rows(source, 1, head);
    for (std::int32_t chunk = gather.first_chunk(head); chunk < gather.first_chunk(head + 1); ++chunk) {
      const std::int64_t first = gather.chunk_row(chunk), end = first + gather.chunk_rows(source, chunk);
      const std::int64_t begin = std::max(first, tile.first);
      const Positions here =
          held.slice({begin - tile.first, std::min(end, tile.first + held.size()) - tile.first});
      if (state.hides(here)) continue;
      MK_RETURN_IF_ERROR(gathered_.wait(source, chunk, "compute"));
      state.attend(keys.from(begin), values.from(begin), here, scratch);
    }
    return {};
  }

  const RingPlan& plan_;
  const CpuKvGather& gathered_;
  const AttentionArguments& arguments_;
  const Launch& launch_;
  const std::vector<AttentionSlot>& slots_;
  WorkCounter work_;
};

class CpuRingAttention final : public AttentionOperation {
 public:
  CpuRingAttention(RingPlan plan, Topology topology)
      : plan_(std::move(plan)), topology_(std::move(topology)) {}

  OpKind kind() const override { return OpKind::kRingAttention; }
  Executor executor() const override { return Executor::kCpu; }
  std::string signature() const override { return attention_signature(OpKind::kRingAttention, plan_.shape); }
  Requirements requirements() const override {
    if (plan_.gather.world == 1) return {};
    return {plan_.gather.word_bytes(), plan_.gather.data_bytes(), plan_.lanes()};
  }
  std::uint64_t wire_bytes() const override { return binding_.wire_bytes(); }

  Status bind(const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
              std::uint32_t first_lane) override {
    return binding_.bind(requirements(), topology_, group, workspace, lent, first_lane);
  }

  bool refused() const override { return refused_; }

  /// A launch whose lengths are bad passes on keys and values all the same: the other ranks do not fail.
  Status run(const AttentionArguments& arguments, const ExecutorOptions& options) override {
    refused_ = false;
    MK_RETURN_IF_ERROR(binding_.ready());
    MK_RETURN_IF_ERROR(plan_.check(arguments));
    const Status refusal =
        plan_.packed() ? plan_.refuse(first_bad_length(plan_.lengths(arguments))) : Status();
    std::vector<AttentionSlot> slots;
    if (plan_.packed() && refusal.ok()) slots = plan_.slots(plan_.lengths(arguments));
    MK_RETURN_IF_ERROR(binding_.launch(topology_, options, [&](Launch& launch) {
      const CpuKvGather gathered(plan_, topology_, binding_.workspace(), binding_.lent(), binding_.endpoint(),
                                 arguments.k, arguments.v, launch);
      RingAttentionLaunch roles(plan_, gathered, arguments, slots, launch);
      gathered.start(launch);
      for (int thread = 0; thread < launch.compute_threads; ++thread)
        launch.roles.start("compute", [&roles] { return roles.compute(); });
      (void)launch.roles.join();
    }));
    refused_ = !refusal.ok();
    return refusal;
  }

 private:
  BadLength first_bad_length(const AttentionLengths& lengths) const {
    for (std::int32_t i = 0; i < ring_length_entries(lengths); ++i) {
      const BadLength bad = check_ring_length(lengths, plan_.shape.causal, i);
      if (bad.number >= 0) return bad;
    }
    return {};
  }

  const RingPlan plan_;
  const Topology topology_;
  Binding binding_{name_of(OpKind::kRingAttention)};
  std::atomic<bool> refused_ = false;
};

}  // namespace

Result<std::unique_ptr<AttentionOperation>> make_cpu_ring_attention(const AttentionShape& shape,
                                                                    const Topology& topology,
                                                                    std::uint32_t rank) {
  MK_RETURN_IF_ERROR(RingPlan::check(OpKind::kRingAttention, shape, topology));
  RingPlan plan = RingPlan::make(shape, topology, rank);
  cut_on_cpu(plan, kChunkBytes);
  return std::unique_ptr<AttentionOperation>(std::make_unique<CpuRingAttention>(std::move(plan), topology));
}

}  // namespace mkernel::kernels

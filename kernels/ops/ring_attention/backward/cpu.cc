// The backward pass of ring attention on the cpu executor. Threads take chunks of keys of all ranks, then
// tiles of own queries, then sums of parts. See README.md.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/attention/backward.h"
#include "kernels/cpu/launch/binding.h"
#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/attention_backward/plan.h"
#include "kernels/ops/ring_attention/backward/reduce_cpu.h"
#include "kernels/ops/ring_attention/gather_cpu.h"
#include "kernels/ops/ring_attention/plan.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/gemm_shape.h"
#include "kernels/plan/kv_reduce_plan.h"

namespace mkernel::kernels {
namespace {

/// Of a chunk of keys: several tiles, yet so few that there are enough chunks for all threads.
constexpr std::int64_t kKeyChunkBytes = std::int64_t{128} << 10;

/// The compute threads of one launch.
class RingBackwardLaunch {
 public:
  RingBackwardLaunch(const RingPlan& plan, const CpuKvGather& gathered, const CpuKvReduce& reduced,
                     const AttentionBackwardArguments& arguments, const Launch& launch)
      : plan_(plan),
        gathered_(gathered),
        reduced_(reduced),
        arguments_(arguments),
        launch_(launch),
        keys_(plan.gather.chunks() * plan.gather.world),
        queries_(plan.tasks.tasks()),
        units_(reduced.units()) {}

  Status compute() {
    BackwardTiles tiles(plan_.shape.head_dim);
    MK_RETURN_IF_ERROR(each(keys_, [&](std::int32_t item) { return sum_keys(item, tiles); }));
    MK_RETURN_IF_ERROR(each(queries_, [&](std::int32_t item) { return sum_queries(item, tiles); }));
    return each(units_, [&](std::int32_t item) { return reduced_.sum(item); });
  }

 private:
  template <class Take>
  Status each(WorkCounter& work, const Take& take) const {
    for (std::int32_t i = work.next(); i < work.all() && !launch_.roles.stop(); i = work.next())
      MK_RETURN_IF_ERROR(take(i));
    return {};
  }

  Positions positions(std::int32_t source) const {
    return held_positions(plan_.shape.sequence, plan_.shape.causal, plan_.gather.world, source);
  }
  Range rows_of(std::int32_t source, std::int32_t chunk) const {
    const std::int64_t row = plan_.gather.chunk_row(chunk);
    return {row, row + plan_.gather.chunk_rows(source, chunk)};
  }
  HeadRows query_rows(const void* tensor, std::int64_t head) const {
    const AttentionShape& shape = plan_.shape;
    return head_rows(shape, tensor, shape.heads, plan_.gather.positions(plan_.gather.rank),
                     head / shape.heads, head % shape.heads);
  }
  /// Head `head` of the queries, of all batch entries, with the keys of a source.
  BackwardHead head_of(std::int64_t head, std::int32_t source) const {
    const auto kv_head = static_cast<std::int32_t>(head / plan_.group());
    return {.q = query_rows(arguments_.q, head),
            .out = query_rows(arguments_.out, head),
            .d_out = query_rows(arguments_.d_out, head),
            .k = gathered_.rows(source, 0, kv_head),
            .v = gathered_.rows(source, 1, kv_head),
            .lse = arguments_.lse + head * plan_.gather.positions(plan_.gather.rank),
            .queries = positions(plan_.gather.rank),
            .keys = positions(source),
            .causal = plan_.shape.causal,
            .scale = attention_scale(plan_.shape)};
  }

  /// What own queries add to the gradients of a chunk of keys. Chunks of all sources follow each other as
  /// they come.
  Status sum_keys(std::int32_t item, BackwardTiles& tiles) const {
    const KvGatherPlan& gather = plan_.gather;
    const std::int32_t block = item % gather.blocks, lap = item / gather.blocks;
    const std::int32_t source = gather.source(lap % gather.world);
    const std::int32_t head = lap / gather.world, chunk = gather.first_chunk(head) + block;
    if (!KvReducePlan::contributes(gather, gather.rank, source, chunk)) return {};
    MK_RETURN_IF_ERROR(gathered_.wait(source, chunk, "compute"));
    const Range rows = rows_of(source, chunk);
    const std::int64_t head_dim = plan_.shape.head_dim;
    std::vector<float> d_k(static_cast<std::size_t>(rows.size() * head_dim)), d_v = d_k;
    for (std::int64_t i = head * plan_.group(); i < (head + 1) * plan_.group(); ++i) {
      const BackwardHead of = head_of(i, source);
      for (const Range tile : attention_tiles(of.keys, rows)) {
        const std::int64_t at = (tile.begin - rows.begin) * head_dim;
        tiles.add_to_keys(of, tile, d_k.data() + at, d_v.data() + at);
      }
    }
    reduced_.store(source, chunk, d_k.data(), d_v.data());
    return {};
  }

  Status sum_queries(std::int32_t item, BackwardTiles& tiles) const {
    const KvGatherPlan& gather = plan_.gather;
    const AttentionTasks::Place place = plan_.tasks.place(item);
    const std::int64_t head = place.batch * plan_.shape.heads + place.head;
    const auto kv_head = static_cast<std::int32_t>(head / plan_.group());
    const Range rows = plan_.query_rows(place.tile);
    std::vector<float> d_q(static_cast<std::size_t>(rows.size() * plan_.shape.head_dim));
    for (std::int32_t step = 0; step < gather.world; ++step) {
      const std::int32_t source = gather.source(step);
      const BackwardHead of = head_of(head, source);
      for (std::int32_t chunk = gather.first_chunk(kv_head); chunk < gather.first_chunk(kv_head + 1);
           ++chunk) {
        const Range keys = rows_of(source, chunk);
        if (!KvReducePlan::contributes(gather, gather.rank, source, chunk)) continue;
        MK_RETURN_IF_ERROR(gathered_.wait(source, chunk, "compute"));
        tiles.add_to_queries(of, rows, keys, d_q.data());
      }
    }
    store_rows(d_q.data(), rows.size(), query_rows(arguments_.d_q, head).from(rows.begin));
    return {};
  }

  const RingPlan& plan_;
  const CpuKvGather& gathered_;
  const CpuKvReduce& reduced_;
  const AttentionBackwardArguments& arguments_;
  const Launch& launch_;
  WorkCounter keys_, queries_, units_;
};

class CpuRingAttentionBackward final : public AttentionBackwardOperation {
 public:
  CpuRingAttentionBackward(RingPlan plan, Topology topology)
      : plan_(std::move(plan)), reduce_(plan_.gather), topology_(std::move(topology)) {}

  OpKind kind() const override { return OpKind::kRingAttentionBackward; }
  Executor executor() const override { return Executor::kCpu; }
  std::string signature() const override {
    return attention_signature(OpKind::kRingAttentionBackward, plan_.shape);
  }
  Requirements requirements() const override {
    return {reduce_.word_bytes(), reduce_.data_bytes(), 2 * plan_.lanes()};
  }
  std::uint64_t wire_bytes() const override { return binding_.wire_bytes(); }

  Status bind(const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
              std::uint32_t first_lane) override {
    return binding_.bind(requirements(), topology_, group, workspace, lent, first_lane);
  }

  Status run(const AttentionBackwardArguments& arguments, const ExecutorOptions& options) override {
    MK_RETURN_IF_ERROR(binding_.ready());
    MK_RETURN_IF_ERROR(check_attention_backward_operands(OpKind::kRingAttentionBackward, arguments,
                                                         plan_.gather.positions(plan_.gather.rank)));
    return binding_.launch(topology_, options, [&](Launch& launch) {
      const CpuKvGather gathered(plan_, topology_, binding_.workspace(), binding_.lent(), binding_.endpoint(),
                                 arguments.k, arguments.v, launch);
      const CpuKvReduce reduced(plan_, reduce_, topology_, binding_.workspace(), binding_.lent(),
                                binding_.endpoint(), arguments.d_k, arguments.d_v, launch);
      RingBackwardLaunch roles(plan_, gathered, reduced, arguments, launch);
      gathered.start(launch);
      if (reduce_.nodes > 1) launch.roles.start("inter_send", [&reduced] { return reduced.put(); });
      for (int thread = 0; thread < launch.compute_threads; ++thread)
        launch.roles.start("compute", [&roles] { return roles.compute(); });
      (void)launch.roles.join();
    });
  }

 private:
  const RingPlan plan_;
  const KvReducePlan reduce_;
  const Topology topology_;
  Binding binding_{name_of(OpKind::kRingAttentionBackward)};
};

}  // namespace

Result<std::unique_ptr<AttentionBackwardOperation>> make_cpu_ring_attention_backward(
    const AttentionShape& shape, const Topology& topology, std::uint32_t rank) {
  MK_RETURN_IF_ERROR(RingPlan::check(OpKind::kRingAttentionBackward, shape, topology));
  RingPlan plan = RingPlan::make(shape, topology, rank);
  cut_on_cpu(plan, kKeyChunkBytes);
  return std::unique_ptr<AttentionBackwardOperation>(
      std::make_unique<CpuRingAttentionBackward>(std::move(plan), topology));
}

}  // namespace mkernel::kernels

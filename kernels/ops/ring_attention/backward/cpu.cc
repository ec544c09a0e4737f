// The backward pass of ring attention on the cpu executor: threads play the CTAs of roles.cuh, on the same
// plan, but for the gradients of queries, which they compute tile by tile. See README.md.
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
#include "kernels/ops/ring_attention/backward/key_sums_cpu.h"
#include "kernels/ops/ring_attention/backward/plan.h"
#include "kernels/ops/ring_attention/gather_cpu.h"
#include "kernels/ops/ring_attention/plan.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

/// Of a chunk of keys, and of a put of sums: so few that there are enough of them for all threads.
constexpr std::int64_t kSmallChunkBytes = std::int64_t{128} << 10;
static_assert(kBackwardTileKeys <= kAttentionTile);

/// The compute threads of one launch.
class RingBackwardLaunch {
 public:
  RingBackwardLaunch(const RingBackwardPlan& plan, const CpuKvGather& gathered, const CpuKeySums& sums,
                     const AttentionBackwardArguments& arguments, const Launch& launch)
      : plan_(plan),
        gathered_(gathered),
        sums_(sums),
        arguments_(arguments),
        launch_(launch),
        keys_(plan.tasks.tasks()),
        put_(plan.all_put_units()),
        queries_(plan.ring.tasks.tasks()),
        own_(plan.all_own_units()) {}

  /// What other nodes wait for first, and what comes from there last.
  Status compute() {
    BackwardTiles tiles(plan_.shape().head_dim);
    MK_RETURN_IF_ERROR(each(keys_, [&](std::int32_t task) { return sum_keys(plan_.place(task), tiles); }));
    MK_RETURN_IF_ERROR(each(put_, [&](std::int32_t unit) { return sums_.stage(unit); }));
    MK_RETURN_IF_ERROR(each(queries_, [&](std::int32_t task) { return sum_queries(task, tiles); }));
    return each(own_, [&](std::int32_t unit) { return sums_.finish(unit); });
  }

 private:
  template <class Take>
  Status each(WorkCounter& work, const Take& take) const {
    for (std::int32_t i = work.next(); i < work.all() && !launch_.roles.stop(); i = work.next())
      MK_RETURN_IF_ERROR(take(i));
    return {};
  }

  const KvGatherPlan& gather() const { return plan_.gather(); }
  Positions positions(std::int32_t source) const {
    return held_positions(plan_.shape().sequence, plan_.shape().causal, gather().world, source);
  }
  HeadRows query_rows(const void* tensor, std::int64_t head) const {
    const AttentionShape& shape = plan_.shape();
    return head_rows(shape, tensor, shape.heads, plan_.positions(), head / shape.heads, head % shape.heads);
  }
  /// Head `head` of the queries, of all batch entries, with the keys of a source.
  BackwardHead head_of(std::int64_t head, std::int32_t source) const {
    const auto kv_head = static_cast<std::int32_t>(head / plan_.ring.group());
    return {.q = query_rows(arguments_.q, head),
            .out = query_rows(arguments_.out, head),
            .d_out = query_rows(arguments_.d_out, head),
            .k = gathered_.rows(source, 0, kv_head),
            .v = gathered_.rows(source, 1, kv_head),
            .lse = arguments_.lse + head * plan_.positions(),
            .queries = positions(gather().rank),
            .keys = positions(source),
            .window = attention_window(plan_.shape()),
            .scale = attention_scale(plan_.shape())};
  }

  /// What own queries add to the gradients of a tile of keys.
  Status sum_keys(const RingBackwardTasks::Place& place, BackwardTiles& tiles) const {
    const Range part = positions(place.source).rows(place.part);
    const std::int64_t begin = part.begin + std::int64_t{place.tile} * kBackwardTileKeys;
    const Range rows{begin, std::min<std::int64_t>(part.end, begin + kBackwardTileKeys)};
    const std::int32_t last = gather().chunk_of(place.head, static_cast<std::int32_t>(rows.end - 1));
    for (std::int32_t chunk = gather().chunk_of(place.head, static_cast<std::int32_t>(rows.begin));
         chunk <= last; ++chunk)
      MK_RETURN_IF_ERROR(gathered_.wait(place.source, chunk, "compute"));
    std::vector<float> d_k(static_cast<std::size_t>(rows.size() * plan_.shape().head_dim)), d_v = d_k;
    for (std::int64_t i = place.head * plan_.ring.group(); i < (place.head + 1) * plan_.ring.group(); ++i)
      tiles.add_to_keys(head_of(i, place.source), rows, d_k.data(), d_v.data());
    sums_.store(place, d_k.data(), d_v.data());
    return {};
  }

  static bool sees(const BackwardHead& head, Range query_rows, Range key_rows) {
    const std::vector<Range> tiles = attention_tiles(head.keys, key_rows);
    return std::any_of(tiles.begin(), tiles.end(), [&](Range tile) { return head.sees(query_rows, tile); });
  }

  /// The gradients of a tile of own queries.
  Status sum_queries(std::int32_t task, BackwardTiles& tiles) const {
    const AttentionTasks::Place place = plan_.ring.tasks.place(task);
    const std::int64_t head = place.batch * plan_.shape().heads + place.head;
    const auto kv_head = static_cast<std::int32_t>(head / plan_.ring.group());
    const Range rows = plan_.ring.query_rows(place.tile);
    std::vector<float> d_q(static_cast<std::size_t>(rows.size() * plan_.shape().head_dim));
    for (std::int32_t step = 0; step < gather().world; ++step) {
      const std::int32_t source = gather().source(step);
      const BackwardHead of = head_of(head, source);
      for (std::int32_t chunk = gather().first_chunk(kv_head); chunk < gather().first_chunk(kv_head + 1);
           ++chunk) {
        const std::int64_t row = gather().chunk_row(chunk);
        const Range keys{row, row + gather().chunk_rows(source, chunk)};
        if (!sees(of, rows, keys)) continue;
        MK_RETURN_IF_ERROR(gathered_.wait(source, chunk, "compute"));
        tiles.add_to_queries(of, rows, keys, d_q.data());
      }
    }
    store_rows(d_q.data(), rows.size(), query_rows(arguments_.d_q, head).from(rows.begin));
    return {};
  }

  const RingBackwardPlan& plan_;
  const CpuKvGather& gathered_;
  const CpuKeySums& sums_;
  const AttentionBackwardArguments& arguments_;
  const Launch& launch_;
  WorkCounter keys_, put_, queries_, own_;
};

/// The plan of both executors, with chunks of this one and tasks taken a head at a time.
RingBackwardPlan plan_on_cpu(const AttentionShape& shape, const Topology& topology, std::uint32_t rank) {
  RingGpuPlan ring{RingPlan::make(shape, topology, rank), 1, 1, kHostMachine};
  cut_on_cpu(ring, kSmallChunkBytes);
  RingBackwardPlan plan = RingBackwardPlan::of(std::move(ring));
  const auto unit_bytes = static_cast<std::int64_t>(plan.puts.unit_bytes);
  plan.puts.chunk_units = static_cast<std::int32_t>(std::max<std::int64_t>(1, kSmallChunkBytes / unit_bytes));
  return plan;
}

class CpuRingAttentionBackward final : public AttentionBackwardOperation {
 public:
  CpuRingAttentionBackward(RingBackwardPlan plan, Topology topology)
      : plan_(std::move(plan)), topology_(std::move(topology)) {}

  OpKind kind() const override { return OpKind::kRingAttentionBackward; }
  Executor executor() const override { return Executor::kCpu; }
  std::string signature() const override {
    return attention_signature(OpKind::kRingAttentionBackward, plan_.shape());
  }
  Requirements requirements() const override {
    return {plan_.partials.word_bytes(), plan_.data_bytes(), plan_.lanes()};
  }
  std::uint64_t wire_bytes() const override { return binding_.wire_bytes(); }

  Status bind(const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
              std::uint32_t first_lane) override {
    return binding_.bind(requirements(), topology_, group, workspace, lent, first_lane);
  }

  Status run(const AttentionBackwardArguments& arguments, const ExecutorOptions& options) override {
    MK_RETURN_IF_ERROR(binding_.ready());
    MK_RETURN_IF_ERROR(
        check_attention_backward_operands(OpKind::kRingAttentionBackward, arguments, plan_.positions()));
    return binding_.launch(topology_, options, [&](Launch& launch) {
      const CpuKvGather gathered(plan_.ring, topology_, binding_.workspace(), binding_.lent(),
                                 binding_.endpoint(), arguments.k, arguments.v, launch);
      const CpuKeySums sums(plan_, topology_, binding_.workspace(), binding_.lent(), binding_.endpoint(),
                            arguments.d_k, arguments.d_v, launch);
      RingBackwardLaunch roles(plan_, gathered, sums, arguments, launch);
      gathered.start(launch);
      if (topology_.nodes() > 1) launch.roles.start("inter_send", [&sums] { return sums.put(); });
      for (int thread = 0; thread < launch.compute_threads; ++thread)
        launch.roles.start("compute", [&roles] { return roles.compute(); });
      (void)launch.roles.join();
    });
  }

 private:
  const RingBackwardPlan plan_;
  const Topology topology_;
  Binding binding_{name_of(OpKind::kRingAttentionBackward)};
};

}  // namespace

Result<std::unique_ptr<AttentionBackwardOperation>> make_cpu_ring_attention_backward(
    const AttentionShape& shape, const Topology& topology, std::uint32_t rank) {
  MK_RETURN_IF_ERROR(RingPlan::check(OpKind::kRingAttentionBackward, shape, topology));
  return std::unique_ptr<AttentionBackwardOperation>(
      std::make_unique<CpuRingAttentionBackward>(plan_on_cpu(shape, topology, rank), topology));
}

}  // namespace mkernel::kernels

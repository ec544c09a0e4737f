// The backward pass of attention of a rank alone on the cpu executor: threads take one tile of keys, then one
// tile of queries after the other. Nothing is added by two of them, so no sum depends on their number; in
// return the scores are computed twice.
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
#include "kernels/ops/ring_attention/backward_plan.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/cuts.h"

namespace mkernel::kernels {
namespace {

/// What a thread sums: of one tile.
struct TileSums {
  explicit TileSums(std::int64_t head_dim)
      : tiles(head_dim), first(kAttentionTile * head_dim), second(kAttentionTile * head_dim) {}

  BackwardTiles tiles;
  std::vector<float> first, second;  ///< [kAttentionTile, head_dim]
};

/// One launch.
class BackwardLaunch {
 public:
  BackwardLaunch(const AttentionBackwardPlan& plan, const AttentionBackwardArguments& arguments,
                 const Launch& launch)
      : plan_(plan),
        shape_(plan.shape),
        arguments_(arguments),
        launch_(launch),
        key_tiles_(ceil_div(shape_.keys, kAttentionTile)),
        query_tiles_(ceil_div(shape_.sequence, kAttentionTile)),
        of_keys_(shape_.batch * shape_.kv_heads * key_tiles_),
        work_(static_cast<std::int32_t>(of_keys_ + shape_.batch * shape_.heads * query_tiles_)) {}

  /// A compute thread.
  Status compute() {
    TileSums sums(shape_.head_dim);
    for (std::int64_t i = work_.next(); i < work_.all() && !launch_.roles.stop(); i = work_.next()) {
      if (i < of_keys_) {
        sum_keys(i / key_tiles_ / shape_.kv_heads, i / key_tiles_ % shape_.kv_heads, i % key_tiles_, sums);
      } else {
        const std::int64_t of = i - of_keys_, head = of / query_tiles_;
        sum_queries(head / shape_.heads, head % shape_.heads, query_tiles_ - 1 - of % query_tiles_, sums);
      }
    }
    return {};
  }

 private:
  static Range tile_of(std::int64_t tile, std::int64_t rows) {
    return {tile * kAttentionTile, std::min((tile + 1) * kAttentionTile, rows)};
  }
  HeadRows query_rows(const void* tensor, std::int64_t batch, std::int64_t head) const {
    return head_rows(shape_, tensor, shape_.heads, shape_.sequence, batch, head);
  }
  HeadRows key_rows(const void* tensor, std::int64_t batch, std::int64_t kv_head) const {
    return head_rows(shape_, tensor, shape_.kv_heads, shape_.keys, batch, kv_head);
  }
  BackwardHead head_of(std::int64_t batch, std::int64_t head) const {
    const std::int64_t kv_head = head / plan_.group();
    return {.q = query_rows(arguments_.q, batch, head),
            .out = query_rows(arguments_.out, batch, head),
            .d_out = query_rows(arguments_.d_out, batch, head),
            .k = key_rows(arguments_.k, batch, kv_head),
            .v = key_rows(arguments_.v, batch, kv_head),
            .lse = arguments_.lse + (batch * shape_.heads + head) * shape_.sequence,
            .queries = {{Range{shape_.keys - shape_.sequence, shape_.keys}, Range{}}},
            .keys = {{Range{0, shape_.keys}, Range{}}},
            .causal = shape_.causal,
            .scale = attention_scale(shape_)};
  }
  void sum_keys(std::int64_t batch, std::int64_t kv_head, std::int64_t tile, TileSums& sums) const {
    const Range keys = tile_of(tile, shape_.keys);
    std::fill(sums.first.begin(), sums.first.end(), 0.0F);
    std::fill(sums.second.begin(), sums.second.end(), 0.0F);
    for (std::int64_t head = kv_head * plan_.group(); head < (kv_head + 1) * plan_.group(); ++head)
      sums.tiles.add_to_keys(head_of(batch, head), keys, sums.first.data(), sums.second.data());
    store_rows(sums.first.data(), keys.size(), key_rows(arguments_.d_k, batch, kv_head).from(keys.begin));
    store_rows(sums.second.data(), keys.size(), key_rows(arguments_.d_v, batch, kv_head).from(keys.begin));
  }

  void sum_queries(std::int64_t batch, std::int64_t head, std::int64_t tile, TileSums& sums) const {
    const Range queries = tile_of(tile, shape_.sequence);
    std::fill(sums.first.begin(), sums.first.end(), 0.0F);
    sums.tiles.add_to_queries(head_of(batch, head), queries, {0, shape_.keys}, sums.first.data());
    store_rows(sums.first.data(), queries.size(),
               query_rows(arguments_.d_q, batch, head).from(queries.begin));
  }

  const AttentionBackwardPlan& plan_;
  const AttentionShape& shape_;
  const AttentionBackwardArguments& arguments_;
  const Launch& launch_;
  const std::int64_t key_tiles_, query_tiles_;
  const std::int64_t of_keys_;  ///< the first items of the work
  WorkCounter work_;
};

class CpuAttentionBackward final : public AttentionBackwardOperation {
 public:
  CpuAttentionBackward(AttentionBackwardPlan plan, Topology topology)
      : plan_(std::move(plan)), topology_(std::move(topology)) {}

  OpKind kind() const override { return OpKind::kAttentionBackward; }
  Executor executor() const override { return Executor::kCpu; }
  std::string signature() const override { return plan_.signature(); }
  Requirements requirements() const override { return {}; }
  std::uint64_t wire_bytes() const override { return 0; }

  Status bind(const GroupView& group, const SymmetricView& workspace, const SymmetricView& lent,
              std::uint32_t first_lane) override {
    return binding_.bind(requirements(), topology_, group, workspace, lent, first_lane);
  }

  Status run(const AttentionBackwardArguments& arguments, const ExecutorOptions& options) override {
    MK_RETURN_IF_ERROR(binding_.ready());
    MK_RETURN_IF_ERROR(plan_.check(arguments));
    return binding_.launch(topology_, options, [&](Launch& launch) {
      BackwardLaunch roles(plan_, arguments, launch);
      for (int thread = 0; thread < launch.compute_threads; ++thread)
        launch.roles.start("compute", [&roles] { return roles.compute(); });
      (void)launch.roles.join();
    });
  }

 private:
  const AttentionBackwardPlan plan_;
  const Topology topology_;
  Binding binding_{"attention_backward"};
};

}  // namespace

Result<std::unique_ptr<AttentionBackwardOperation>> make_cpu_attention_backward(const AttentionShape& shape,
                                                                                const Topology& topology) {
  auto plan = AttentionBackwardPlan::make(shape);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<AttentionBackwardOperation>(
      std::make_unique<CpuAttentionBackward>(std::move(plan).value(), topology));
}

}  // namespace mkernel::kernels

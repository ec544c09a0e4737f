// The backward pass of attention of a rank alone on the cpu executor: threads take one tile of keys, then one
// tile of queries after the other. Nothing is added by two of them, so no sum depends on their number; in
// return the scores are computed twice.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/attention/backward.h"
#include "kernels/cpu/launch/alone_operation.h"
#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/attention_backward/plan.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/attention_sequences.h"
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
        blocks_(blocks(plan, plan.lengths(arguments))),
        work_(blocks_.back().before) {}

  static Status refuse(const AttentionBackwardPlan& plan, const AttentionBackwardArguments& arguments) {
    return plan.refuse(first_bad_attention_length(plan.lengths(arguments)));
  }

  /// A compute thread.
  Status compute() {
    TileSums sums(shape_.head_dim);
    for (std::int32_t i = work_.next(); i < work_.all() && !launch_.roles.stop(); i = work_.next()) {
      const Block& block = block_of(i);
      const std::int64_t inside = i - block.before;
      if (block.of_keys) {
        sum_keys(block.sequence, inside / block.tiles, inside % block.tiles, sums);
      } else {
        sum_queries(block.sequence, inside / block.tiles, block.tiles - 1 - inside % block.tiles, sums);
      }
    }
    return {};
  }

 private:
  /// The keys of a sequence, or its queries: all tiles of one head after the other.
  struct Block {
    AttentionSequence sequence;
    bool of_keys;
    std::int64_t tiles;   ///< of a head
    std::int32_t before;  ///< tiles of the blocks before it, of all heads
  };
  /// With one behind the last, which has no tiles.
  static std::vector<Block> blocks(const AttentionBackwardPlan& plan, const AttentionLengths& lengths) {
    std::vector<Block> made;
    std::int64_t before = 0;
    for (const bool of_keys : {true, false}) {
      for (std::int32_t i = 0; i < lengths.sequences; ++i) {
        const AttentionSequence sequence = attention_sequence(lengths, i);
        const std::int64_t tiles = ceil_div(of_keys ? sequence.keys : sequence.queries, kAttentionTile);
        made.push_back({sequence, of_keys, tiles, static_cast<std::int32_t>(before)});
        before += tiles * (of_keys ? plan.shape.kv_heads : plan.shape.heads);
      }
    }
    made.push_back({{}, false, 0, static_cast<std::int32_t>(before)});
    return made;
  }
  const Block& block_of(std::int32_t item) const {
    const auto behind =
        std::upper_bound(blocks_.begin(), blocks_.end(), item,
                         [](std::int32_t number, const Block& block) { return number < block.before; });
    return *(behind - 1);
  }

  static Range tile_of(std::int64_t tile, std::int64_t rows) {
    return {tile * kAttentionTile, std::min((tile + 1) * kAttentionTile, rows)};
  }
  HeadRows query_rows(const AttentionSequence& sequence, const void* tensor, std::int64_t head) const {
    return head_rows(shape_, tensor, shape_.heads, 0, 0, head).from(sequence.query_first);
  }
  HeadRows key_rows(const AttentionSequence& sequence, const void* tensor, std::int64_t kv_head) const {
    return head_rows(shape_, tensor, shape_.kv_heads, 0, 0, kv_head).from(sequence.key_first);
  }
  BackwardHead head_of(const AttentionSequence& sequence, std::int64_t head) const {
    const std::int64_t kv_head = head / plan_.group(), keys = sequence.keys;
    return {.q = query_rows(sequence, arguments_.q, head),
            .out = query_rows(sequence, arguments_.out, head),
            .d_out = query_rows(sequence, arguments_.d_out, head),
            .k = key_rows(sequence, arguments_.k, kv_head),
            .v = key_rows(sequence, arguments_.v, kv_head),
            .lse = arguments_.lse + attention_lse_at(shape_, sequence, head),
            .queries = {{Range{keys - sequence.queries, keys}, Range{}}},
            .keys = {{Range{0, keys}, Range{}}},
            .window = attention_window(shape_),
            .scale = attention_scale(shape_)};
  }
  void sum_keys(const AttentionSequence& sequence, std::int64_t kv_head, std::int64_t tile,
                TileSums& sums) const {
    const Range keys = tile_of(tile, sequence.keys);
    std::fill(sums.first.begin(), sums.first.end(), 0.0F);
    std::fill(sums.second.begin(), sums.second.end(), 0.0F);
    for (std::int64_t head = kv_head * plan_.group(); head < (kv_head + 1) * plan_.group(); ++head)
      sums.tiles.add_to_keys(head_of(sequence, head), keys, sums.first.data(), sums.second.data());
    for (const auto& [sum, tensor] :
         {std::pair{sums.first.data(), arguments_.d_k}, {sums.second.data(), arguments_.d_v}})
      store_rows(sum, keys.size(), key_rows(sequence, tensor, kv_head).from(keys.begin));
  }

  void sum_queries(const AttentionSequence& sequence, std::int64_t head, std::int64_t tile,
                   TileSums& sums) const {
    const Range queries = tile_of(tile, sequence.queries);
    std::fill(sums.first.begin(), sums.first.end(), 0.0F);
    sums.tiles.add_to_queries(head_of(sequence, head), queries, {0, sequence.keys}, sums.first.data());
    store_rows(sums.first.data(), queries.size(),
               query_rows(sequence, arguments_.d_q, head).from(queries.begin));
  }

  const AttentionBackwardPlan& plan_;
  const AttentionShape& shape_;
  const AttentionBackwardArguments& arguments_;
  const Launch& launch_;
  const std::vector<Block> blocks_;
  WorkCounter work_;
};

using CpuAttentionBackward =
    CpuAloneOperation<AttentionBackwardArguments, AttentionBackwardPlan, BackwardLaunch>;

}  // namespace

Result<std::unique_ptr<AttentionBackwardOperation>> make_cpu_attention_backward(const AttentionShape& shape,
                                                                                const Topology& topology) {
  auto plan = AttentionBackwardPlan::make(shape);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<AttentionBackwardOperation>(
      std::make_unique<CpuAttentionBackward>(OpKind::kAttentionBackward, std::move(plan).value(), topology));
}

}  // namespace mkernel::kernels

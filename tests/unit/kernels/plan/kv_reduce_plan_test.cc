// Who has a part of which gradients of keys and values, and where parts and sums lie.
#include "kernels/plan/kv_reduce_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/ops/ring_attention/gather_cpu.h"
#include "kernels/ops/ring_attention/plan.h"
#include "kernels/plan/positions.h"

namespace mkernel::kernels {
namespace {

RingPlan reduce_plan_of(const Topology& topology, std::int64_t sequence, bool causal) {
  RingPlan plan = RingPlan::make(
      {.batch = 2, .sequence = sequence, .heads = 4, .kv_heads = 2, .head_dim = 16, .causal = causal},
      topology, 0);
  cut_on_cpu(plan, 4096);  // chunks of 128 positions
  return plan;
}

/// From the definition.
bool sees_any(const RingPlan& plan, std::int32_t writer, std::int32_t owner, Range rows) {
  const auto held = [&](std::int32_t rank) {
    return held_positions(plan.shape.sequence, plan.shape.causal, plan.gather.world, rank);
  };
  const Positions queries = held(writer), keys = held(owner);
  for (std::int64_t query = 0; query < queries.size(); ++query) {
    for (std::int64_t key = rows.begin; key < rows.end; ++key)
      if (!plan.shape.causal || keys.at(key) <= queries.at(query)) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("kv reduce plan: a rank contributes to the chunks that its queries see a key of") {
  for (const Topology& topology : {Topology(1, 1), {1, 3}, {2, 2}, {1, 7}}) {
    for (const std::int64_t sequence : {1, 5, 37, 700}) {
      for (const bool causal : {false, true}) {
        const RingPlan plan = reduce_plan_of(topology, sequence, causal);
        const KvGatherPlan& gather = plan.gather;
        for (std::int32_t writer = 0; writer < gather.world; ++writer) {
          for (std::int32_t owner = 0; owner < gather.world; ++owner) {
            for (std::int32_t chunk = 0; chunk < gather.chunks(); ++chunk) {
              const std::int64_t row = gather.chunk_row(chunk);
              const Range rows{row, row + gather.chunk_rows(owner, chunk)};
              CHECK(KvReducePlan::contributes(gather, writer, owner, chunk) ==
                    sees_any(plan, writer, owner, rows));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("kv reduce plan: words, parts and sums lie behind what is gathered, none over another") {
  for (const Topology& topology : {Topology(1, 1), {1, 4}, {3, 2}}) {
    for (const std::int64_t sequence : {1, 37, 700}) {
      const RingPlan plan = reduce_plan_of(topology, sequence, true);
      const KvGatherPlan& gather = plan.gather;
      const KvReducePlan reduce(gather);
      std::vector<std::pair<std::uint64_t, std::uint64_t>> words, blocks;
      std::uint64_t most = 0;
      for (std::int32_t owner = 0; owner < gather.world; ++owner) {
        for (std::int32_t chunk = 0; chunk < gather.chunks(); ++chunk) {
          const std::uint64_t at = KvReducePlan::chunk_offset(gather, owner, chunk);
          CHECK(KvReducePlan::chunk_bytes(gather, owner, chunk) == gather.chunk_bytes(owner, chunk) / 2 * 4);
          most = std::max(most, at + KvReducePlan::chunk_bytes(gather, owner, chunk));
        }
      }
      for (std::int32_t distance = 0; distance < reduce.nodes; ++distance) {
        for (std::int32_t writer = 0; writer < reduce.writers; ++writer) {
          words.push_back({reduce.stored_offset(distance, writer), std::uint64_t{8} * gather.chunks()});
          for (std::int32_t tensor = 0; tensor < 2; ++tensor)
            blocks.push_back({reduce.slot_offset(distance, writer, tensor), most});
        }
        for (std::int32_t tensor = 0; tensor < 2 && distance > 0; ++tensor) {
          blocks.push_back({reduce.staged_offset(distance, tensor), most});
          blocks.push_back({reduce.partial_offset(distance, tensor), most});
        }
      }
      const auto check = [](auto& places, std::uint64_t begin, std::uint64_t end) {
        std::sort(places.begin(), places.end());
        for (const auto& [at, bytes] : places) {
          CHECK(at >= begin);
          begin = at + bytes;
        }
        CHECK(begin <= end);
      };
      check(words, gather.word_bytes(), reduce.word_bytes());
      check(blocks, gather.data_bytes(), reduce.data_bytes());
    }
  }
}

}  // namespace mkernel::kernels

// Ring attention on the cuda executor: ranks of one node and of several, which a fabric of the test's joins,
// also such that share a GPU; random inputs, poisoned outputs, every element against fp64, launches queued
// and replayed by graphs, the same bits every time.
#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/make.h"
#include "tests/kernels/gpu_ring_ranks.h"
#include "tests/support/attention_cases.h"
#include "tests/support/require.h"
#include "tools/mkbench/gpu_attention_case.h"
#include "tools/mkbench/gpu_stream.h"

namespace mkernel::test {
namespace {

struct RingRank {
  bench::GpuStream stream;
  std::unique_ptr<kernels::CudaAttentionOperation> operation;
  std::unique_ptr<bench::GpuAttentionCase> operands;
};

/// The operation on every rank, bound, with operands.
class GpuRing : public GpuRingRanks<RingRank> {
 public:
  GpuRing(const FabricOptions& fabric, const AttentionShape& shape,
          const kernels::RingAttentionOptions& options = {})
      : GpuRingRanks(fabric) {
    require_ok(each([&](int rank) { return make(rank, shape, options); }));
    bind();
    // The first launch of a kernel loads it, and a load waits for what runs on the GPU.
    require_ok(each([&](int rank) -> Status {
      MK_RETURN_IF_ERROR(fill(rank, 0));
      return stream(rank).synchronize();
    }));
  }

  /// Ranks of one node.
  GpuRing(std::uint32_t ranks, const AttentionShape& shape, const kernels::RingAttentionOptions& options = {})
      : GpuRing(FabricOptions{.ranks_per_node = ranks}, shape, options) {}

  /// Of queries and keys.
  void set_scale(float scale) { scale_ = scale; }
  Status fill(int rank, std::uint64_t seed) {
    return at(rank).operands->fill(0, seed, stream(rank).get(), scale_);
  }
  Status verify(int rank, std::int64_t step = 1) {
    MK_RETURN_IF_ERROR(stream(rank).synchronize());
    MK_RETURN_IF_ERROR(operation(rank).status());
    const auto check = at(rank).operands->check(0, step, stream(rank).get());
    if (!check.ok() || check->wrong == 0) return check.status();
    return {StatusCode::kDataLoss, "rank " + std::to_string(rank) + ": " + std::to_string(check->wrong) +
                                       " of " + std::to_string(check->elements) + " elements wrong, one at " +
                                       std::to_string(check->first_wrong)};
  }

  /// From the thread of the test case: launches with new inputs each, all checked.
  void check(int launches = 3, std::int64_t step = 1) {
    for (int launch = 1; launch <= launches; ++launch) {
      // No rank is filled while others wait for its launch. That takes many calls, and under a tool one may
      // wait for all that runs on the GPU, or hold up a put.
      require_ok(each([&](int rank) -> Status {
        MK_RETURN_IF_ERROR(fill(rank, static_cast<std::uint64_t>(launch)));
        return wait(rank);
      }));
      require_ok(each([&](int rank) -> Status {
        MK_RETURN_IF_ERROR(enqueue(rank));
        return wait(rank);
      }));
      require_ok(each([&](int rank) { return verify(rank, step); }));
      REQUIRE(fabric().error() == "");
    }
  }
  /// 1,000 replays of a graph by default, and a launch by itself with the same inputs: the same bits.
  void check_replays(int replays = 1000) {
    require_ok(each([&](int rank) { return fill(rank, 1); }));
    check_graphs(1, replays - 1, [&] { require_ok(each([&](int rank) { return verify(rank); })); });
  }

 private:
  Status make(int rank, const AttentionShape& shape, kernels::RingAttentionOptions options) {
    MK_RETURN_IF_ERROR(
        make_rank(rank, options, [&](const auto& topology, std::uint32_t of, const auto& with) {
          return kernels::make_cuda_ring_attention(shape, topology, of, with);
        }));
    auto operands = bench::GpuAttentionCase::make(shape, size(), rank);
    if (!operands.ok()) return operands.status();
    at(rank).operands = std::make_unique<bench::GpuAttentionCase>(std::move(*operands));
    return {};
  }

  float scale_ = 2;
};

}  // namespace

TEST_CASE("ring attention: a shape small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  // A task for each CTA: racecheck does not see that all lanes have read a task before the next one is
  // written.
  for_every_mask({.batch = 1, .sequence = 300, .heads = 2, .kv_heads = 1},
                 [](const AttentionShape& shape) { GpuRing(2, shape).check(2); });
}

TEST_CASE("ring attention: the cases of both executors") {
  if (!peers_or_skip(1)) return;
  for_every_ring_case([](const AttentionShape& shape, float scale, std::uint32_t nodes, std::uint32_t ranks) {
    GpuRing ring({.nodes = nodes, .ranks_per_node = ranks}, shape);
    CAPTURE(ring.operation(0).signature());
    ring.set_scale(scale);
    ring.check(2);
  });
}

TEST_CASE("ring attention: longer sequences, heads that share keys") {
  if (!peers_or_skip(1)) return;
  for (const std::uint32_t ranks : {1U, 2U, 3U, 4U}) {
    for (const std::int64_t sequence : {1000, 4096}) {
      CAPTURE(ranks);
      CAPTURE(sequence);
      for_every_attention({.batch = 2, .sequence = sequence, .heads = 8, .kv_heads = 2},
                          [&](const AttentionShape& shape) {
                            GpuRing ring(ranks, shape);
                            ring.check(1, sequence > 1000 ? 3 : 1);  // the reference has most of the time
                            ring.check(2, 7);
                          });
    }
  }
  GpuRing(4, {.batch = 1, .sequence = 3001, .heads = 64, .kv_heads = 64, .head_dim = 128}).check(3, 3);
  GpuRing(4, {.batch = 3, .sequence = 3001, .heads = 6, .kv_heads = 1, .head_dim = 64, .causal = true})
      .check();
}

TEST_CASE("ring attention: a long sequence") {
  if (!peers_or_skip(1)) return;
  for (const bool causal : {false, true}) {
    GpuRing(4, {.batch = 1, .sequence = 100003, .heads = 4, .kv_heads = 2, .head_dim = 128, .causal = causal})
        .check(2, 997);
  }
}

TEST_CASE("ring attention: any number of CTAs that push computes the same bits") {
  if (!peers_or_skip(1)) return;
  const AttentionShape shape{
      .batch = 1, .sequence = 2500, .heads = 4, .kv_heads = 4, .head_dim = 64, .causal = true};
  std::vector<std::uint64_t> first;
  for (const std::int32_t comm_ctas : {0, 1, 3, 9}) {
    GpuRing ranks(2, shape, {.comm_ctas = comm_ctas});
    ranks.check(1);
    const std::vector<std::uint64_t> digests = ranks.digests();
    if (first.empty()) first = digests;
    CHECK(digests == first);
  }
}

TEST_CASE("ring attention: captured in graphs and replayed, no host call between, the same bits every time") {
  if (!peers_or_skip(1)) return;
  for (const bool causal : {false, true}) {
    GpuRing(4, {.batch = 2, .sequence = 2500, .heads = 6, .kv_heads = 2, .head_dim = 128, .causal = causal})
        .check_replays();
  }
}

TEST_CASE("ring attention: a rank that does not come is named, and later launches are refused") {
  if (!peers_or_skip(1)) return;
  GpuRing ranks(2, {.batch = 1, .sequence = 500, .heads = 2, .kv_heads = 2, .head_dim = 64});
  ranks.check(1);
  const Status missed = ranks.miss_rank_1();
  CHECK(missed.code() == StatusCode::kDeadlineExceeded);
  CHECK_MESSAGE(missed.text().find("a chunk") != std::string::npos, missed.text());
  CHECK_MESSAGE(missed.text().find("rank 1") != std::string::npos, missed.text());
}

TEST_CASE("ring attention: several nodes, a shape small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  GpuRing({.nodes = 2, .ranks_per_node = 2},
          {.batch = 2, .sequence = 300, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = true})
      .check(2);
}

TEST_CASE("ring attention: several nodes, and each key crosses to a node once") {
  if (!peers_or_skip(1)) return;
  for (const FabricOptions& fabric :
       {FabricOptions{.nodes = 2}, FabricOptions{.nodes = 3}, FabricOptions{.nodes = 2, .ranks_per_node = 2},
        FabricOptions{.nodes = 3, .ranks_per_node = 2}}) {
    for (const std::int64_t sequence : {7, 2000}) {
      const std::string what = std::to_string(fabric.nodes) + " x " + std::to_string(fabric.ranks_per_node) +
                               ", sequence " + std::to_string(sequence);
      CAPTURE(what);
      for_every_attention({.batch = 2, .sequence = sequence, .heads = 8, .kv_heads = 2},
                          [&](const AttentionShape& shape) {
                            GpuRing ranks(fabric, shape);
                            ranks.check();
                            ranks.check_wire_bytes(3);
                          });
    }
  }
}

TEST_CASE("ring attention: several nodes, a long sequence, any number of CTAs that push") {
  if (!peers_or_skip(1)) return;
  for (const std::int32_t comm_ctas : {0, 1, 5}) {
    for (const bool causal : {false, true}) {
      GpuRing({.nodes = 2, .ranks_per_node = 2},
              {.batch = 1, .sequence = 30011, .heads = 4, .kv_heads = 2, .head_dim = 128, .causal = causal},
              {.comm_ctas = comm_ctas})
          .check(2, 97);
    }
  }
}

TEST_CASE("ring attention: several nodes, captured in graphs and replayed, the same bits every time") {
  if (!peers_or_skip(1)) return;
  for (const FabricOptions& fabric :
       {FabricOptions{.nodes = 2, .ranks_per_node = 2}, FabricOptions{.nodes = 3}}) {
    GpuRing(fabric,
            {.batch = 2, .sequence = 2500, .heads = 6, .kv_heads = 2, .head_dim = 128, .causal = true})
        .check_replays(200);
  }
}

TEST_CASE(
    "ring attention: a rank of another node that does not come is named, and later launches are refused") {
  if (!peers_or_skip(1)) return;
  GpuRing ranks({.nodes = 2}, {.batch = 1, .sequence = 500, .heads = 2, .kv_heads = 2, .head_dim = 64});
  ranks.check(1);
  const Status missed = ranks.miss_rank_1();
  CHECK(missed.code() == StatusCode::kDeadlineExceeded);
  CHECK_MESSAGE(missed.text().find("rank 1") != std::string::npos, missed.text());
}

}  // namespace mkernel::test

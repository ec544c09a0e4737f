// The backward pass of ring attention on the cuda executor: ranks of one node and of several, also such that
// share a GPU; random inputs, poisoned outputs, every element against fp64, launches queued and replayed by
// graphs, the same bits every time.
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
#include "tools/mkbench/gpu_ring_backward_case.h"
#include "tools/mkbench/gpu_stream.h"

namespace mkernel::test {
namespace {

struct RingBackwardRank {
  bench::GpuStream stream;
  std::unique_ptr<kernels::CudaAttentionOperation> forward;  ///< of a rank alone
  std::unique_ptr<kernels::CudaAttentionBackwardOperation> operation;
  std::unique_ptr<bench::GpuRingBackwardCase> operands;
};

/// The operation on every rank, bound, with operands.
class GpuRingBackward : public GpuRingRanks<RingBackwardRank> {
 public:
  GpuRingBackward(const FabricOptions& fabric, const AttentionShape& shape,
                  const kernels::RingAttentionOptions& options = {})
      : GpuRingRanks(fabric) {
    require_ok(each([&](int rank) { return make(rank, shape, options); }));
    bind([&](int rank) { return at(rank).forward->bind(world().group(rank), {}, {}, 1); });
    fill(0);  // loads kernels, and a load waits for what runs on the GPU
  }

  /// Ranks of one node.
  GpuRingBackward(std::uint32_t ranks, const AttentionShape& shape,
                  const kernels::RingAttentionOptions& options = {})
      : GpuRingBackward(FabricOptions{.ranks_per_node = ranks}, shape, options) {}

  /// From the thread of the test case: new inputs on all ranks, which are there when it returns: attention
  /// needs multiprocessors that a launch of another rank may have.
  void fill(std::uint64_t seed) {
    require_ok(each([&](int rank) -> Status {
      MK_RETURN_IF_ERROR(at(rank).operands->fill(0, seed, stream(rank).get(), attend(rank)));
      return stream(rank).synchronize();
    }));
  }
  /// Every `step`-th row of all ranks, once their streams are done.
  void verify(std::int64_t step = 1) {
    synchronize();
    require_ok(each([&](int rank) -> Status {
      const auto check = at(rank).operands->check(0, step, stream(rank).get(), attend(rank));
      if (!check.ok() || check->wrong == 0) return check.status();
      return {StatusCode::kDataLoss, "rank " + std::to_string(rank) + ": " + std::to_string(check->wrong) +
                                         " of " + std::to_string(check->elements) +
                                         " elements wrong, one at " + std::to_string(check->first_wrong) +
                                         ", worst of bound " + std::to_string(check->worst)};
    }));
    REQUIRE(fabric().error() == "");
  }
  void check(int launches = 3, std::int64_t step = 1) {
    for (int launch = 1; launch <= launches; ++launch) {
      fill(static_cast<std::uint64_t>(launch));
      require_ok(each([&](int rank) { return enqueue(rank); }));
      verify(step);
    }
  }
  /// Replays of a graph, and a launch by itself with the same inputs: the same bits.
  void check_replays(int replays) {
    fill(1);
    check_graphs(10, replays / 10, [&] { verify(); });
  }

 private:
  Status make(int rank, const AttentionShape& shape, kernels::RingAttentionOptions options) {
    MK_RETURN_IF_ERROR(
        make_rank(rank, options, [&](const auto& topology, std::uint32_t of, const auto& with) {
          return kernels::make_cuda_ring_attention_backward(shape, topology, of, with);
        }));
    auto forward = kernels::make_cuda_attention(shape, {1, 1}, 0, {});
    if (!forward.ok()) return forward.status();
    at(rank).forward = std::move(*forward);
    auto operands = bench::GpuRingBackwardCase::make(shape, size(), rank, 1);
    if (!operands.ok()) return operands.status();
    operands->set_nodes(world().topology().nodes());
    at(rank).operands = std::make_unique<bench::GpuRingBackwardCase>(std::move(*operands));
    return {};
  }

  bench::GpuRingBackwardCase::Attend attend(int rank) {
    return [this, rank](const AttentionArguments& arguments) {
      return at(rank).forward->enqueue(arguments, kRingOptions, stream(rank).get());
    };
  }
};

}  // namespace

TEST_CASE("ring attention backward: a shape small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  // Several tasks for each of few CTAs.
  for_every_mask({.batch = 1, .sequence = 300, .heads = 2, .kv_heads = 1},
                 [](const AttentionShape& shape) { GpuRingBackward(2, shape, {.sms = 3}).check(2); });
}

TEST_CASE("ring attention backward: sequences of every length, also shorter than the ranks") {
  if (!peers_or_skip(1)) return;
  for (const std::uint32_t ranks : {1U, 2U, 3U, 4U}) {
    for (const std::int64_t sequence : {1, 7, 520, 1000}) {
      CAPTURE(ranks);
      CAPTURE(sequence);
      for_every_attention({.batch = 1, .sequence = sequence, .heads = 4, .kv_heads = 2},
                          [&](const AttentionShape& shape) { GpuRingBackward(ranks, shape).check(1); });
    }
  }
}

TEST_CASE("ring attention backward: long sequences") {
  if (!peers_or_skip(1)) return;
  for_every_attention({.batch = 1, .sequence = 4096, .heads = 8, .kv_heads = 2},
                      [](const AttentionShape& shape) { GpuRingBackward(4, shape).check(2, 7); });
}

TEST_CASE("ring attention backward: any number of CTAs that push computes the same bits") {
  if (!peers_or_skip(1)) return;
  const AttentionShape shape{
      .batch = 1, .sequence = 1100, .heads = 4, .kv_heads = 4, .head_dim = 64, .causal = true};
  std::vector<std::uint64_t> first;
  for (const std::int32_t comm_ctas : {0, 1, 3, 9}) {
    GpuRingBackward ranks(2, shape, {.comm_ctas = comm_ctas});
    ranks.check(1);
    const std::vector<std::uint64_t> digests = ranks.digests();
    if (first.empty()) first = digests;
    CHECK(digests == first);
  }
}

TEST_CASE("ring attention backward: captured in graphs and replayed 1,000 times, the same bits every time") {
  if (!peers_or_skip(1)) return;
  for (const bool causal : {false, true}) {
    GpuRingBackward(
        4, {.batch = 1, .sequence = 1500, .heads = 4, .kv_heads = 2, .head_dim = 128, .causal = causal})
        .check_replays(1000);
  }
}

TEST_CASE("ring attention backward: a rank that does not come is named, and later launches are refused") {
  if (!peers_or_skip(1)) return;
  GpuRingBackward ranks(2, {.batch = 1, .sequence = 500, .heads = 2, .kv_heads = 2, .head_dim = 64});
  ranks.check(1);
  const Status missed = ranks.miss_rank_1();
  CHECK(missed.code() == StatusCode::kDeadlineExceeded);
  CHECK_MESSAGE(missed.text().find("a chunk") != std::string::npos, missed.text());
  CHECK_MESSAGE(missed.text().find("rank 1") != std::string::npos, missed.text());
}

TEST_CASE("ring attention backward: several nodes, a shape small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  GpuRingBackward({.nodes = 2, .ranks_per_node = 2},
                  {.batch = 2, .sequence = 300, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = true},
                  {.sms = 4})
      .check(2);
}

const std::vector<FabricOptions> kSeveralNodes{{.nodes = 2},
                                               {.nodes = 3},
                                               {.nodes = 2, .ranks_per_node = 2},
                                               {.nodes = 2, .ranks_per_node = 3},
                                               {.nodes = 3, .ranks_per_node = 2}};

TEST_CASE("ring attention backward: several nodes, and sums of each key's gradients cross to its node once") {
  if (!peers_or_skip(1)) return;
  for (const FabricOptions& fabric : kSeveralNodes) {
    for (const std::int64_t sequence : {1, 7, 1000}) {
      const std::string what = std::to_string(fabric.nodes) + " x " + std::to_string(fabric.ranks_per_node) +
                               ", sequence " + std::to_string(sequence);
      CAPTURE(what);
      for_every_attention({.batch = 1, .sequence = sequence, .heads = 4, .kv_heads = 2},
                          [&](const AttentionShape& shape) {
                            GpuRingBackward ranks(fabric, shape);
                            ranks.check(2);
                            ranks.check_wire_bytes(2);
                          });
    }
  }
}

TEST_CASE(
    "ring attention backward: several nodes, a long sequence in many puts, any number of CTAs that push") {
  if (!peers_or_skip(1)) return;
  std::vector<std::uint64_t> first[2];
  for (const std::int32_t comm_ctas : {0, 1, 5}) {
    for (const bool causal : {false, true}) {
      GpuRingBackward ranks(
          {.nodes = 2, .ranks_per_node = 2},
          {.batch = 1, .sequence = 16003, .heads = 8, .kv_heads = 4, .head_dim = 128, .causal = causal},
          {.comm_ctas = comm_ctas});
      ranks.check(2, 97);
      std::vector<std::uint64_t>& expected = first[causal ? 1 : 0];
      if (expected.empty()) expected = ranks.digests();
      CHECK(ranks.digests() == expected);
    }
  }
}

TEST_CASE(
    "ring attention backward: several nodes, captured in graphs and replayed, the same bits every time") {
  if (!peers_or_skip(1)) return;
  for (const FabricOptions& fabric :
       {FabricOptions{.nodes = 2, .ranks_per_node = 2}, FabricOptions{.nodes = 3}}) {
    for (const bool causal : {false, true}) {
      GpuRingBackward(
          fabric,
          {.batch = 1, .sequence = 1500, .heads = 4, .kv_heads = 2, .head_dim = 128, .causal = causal})
          .check_replays(200);
    }
  }
}

TEST_CASE("ring attention backward: a rank of another node that does not come is named") {
  if (!peers_or_skip(1)) return;
  GpuRingBackward ranks({.nodes = 2},
                        {.batch = 1, .sequence = 500, .heads = 2, .kv_heads = 2, .head_dim = 64});
  ranks.check(1);
  const Status missed = ranks.miss_rank_1();
  CHECK(missed.code() == StatusCode::kDeadlineExceeded);
  CHECK_MESSAGE(missed.text().find("rank 1") != std::string::npos, missed.text());
}

}  // namespace mkernel::test

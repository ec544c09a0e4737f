// The backward pass of ring attention on the cuda executor: ranks of one node, also such that share a GPU;
// random inputs, poisoned outputs, every element against fp64, launches queued and replayed by graphs, the
// same bits every time.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/launch/operation.h"
#include "kernels/ops/make.h"
#include "tests/support/attention_cases.h"
#include "tests/support/gpu_world.h"
#include "tests/support/require.h"
#include "tools/mkbench/gpu_ring_backward_case.h"
#include "tools/mkbench/gpu_stream.h"

namespace mkernel::test {
namespace {

using namespace std::chrono_literals;

constexpr ExecutorOptions kOptions{.deadline = 10s};

/// The operation on every rank, bound, with operands.
class GpuRingBackward {
 public:
  GpuRingBackward(std::uint32_t ranks, const AttentionShape& shape,
                  const kernels::RingAttentionOptions& options = {})
      : shape_(shape),
        world_(require(GpuWorld::make(FabricOptions{.ranks_per_node = ranks}))),
        ranks_(ranks) {
    require_ok(each([&](int rank) { return make_rank(rank, options); }));
    const Requirements needs = operation(0).requirements();
    const auto workspace = require(world_->symmetric(needs.workspace_bytes));
    const auto lent = require(world_->symmetric(kernels::lent_workspace_bytes(needs.lent_bytes)));
    require_ok(each([&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      MK_RETURN_IF_ERROR(at(rank).forward->bind(world_->group(rank), {}, {}, 1));
      return operation(rank).bind(world_->group(rank), workspace[r], lent[r], 1);
    }));
    fill(0);  // loads kernels, and a load waits for what runs on the GPU
  }

  int size() const { return world_->size(); }
  Status each(const std::function<Status(int rank)>& body) const { return world_->each(body); }
  kernels::CudaAttentionBackwardOperation& operation(int rank) { return *at(rank).operation; }
  const bench::GpuStream& stream(int rank) { return at(rank).stream; }

  /// From the thread of the test case: new inputs on all ranks, which are there when it returns: attention
  /// needs multiprocessors that a launch of another rank may have.
  void fill(std::uint64_t seed) {
    require_ok(each([&](int rank) -> Status {
      MK_RETURN_IF_ERROR(at(rank).operands->fill(0, seed, stream(rank).get(), attend(rank)));
      return stream(rank).synchronize();
    }));
  }
  Status enqueue(int rank, const ExecutorOptions& options = kOptions) {
    return operation(rank).enqueue(at(rank).operands->arguments(0), options, stream(rank).get());
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
  }
  /// Of the gradients of every rank, once their streams are done.
  std::vector<std::uint64_t> digests() {
    synchronize();
    std::vector<std::uint64_t> by_rank(ranks_.size());
    require_ok(each([&](int rank) -> Status {
      auto digest = at(rank).operands->digest(0, stream(rank).get());
      if (digest.ok()) by_rank[static_cast<std::size_t>(rank)] = *digest;
      return digest.status();
    }));
    return by_rank;
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
    std::vector<bench::GpuGraph> graphs(ranks_.size());
    require_ok(each([&](int rank) -> Status {
      auto graph = bench::GpuGraph::capture(stream(rank), [&] { return enqueue(rank); });
      if (graph.ok()) graphs[static_cast<std::size_t>(rank)] = std::move(*graph);
      return graph.status();
    }));
    const auto replay = [&](int times) {
      require_ok(each([&](int rank) -> Status {
        for (int i = 0; i < times; ++i)
          MK_RETURN_IF_ERROR(graphs[static_cast<std::size_t>(rank)].launch(stream(rank)));
        return {};
      }));
    };
    replay(1);
    verify();
    const std::vector<std::uint64_t> first = digests();
    for (int round = 0; round < 10; ++round) {
      replay(replays / 10);
      CHECK(digests() == first);
    }
    require_ok(each([&](int rank) { return enqueue(rank); }));
    CHECK(digests() == first);
  }
  /// Rank 1 does not launch: what rank 0 says, which then refuses another launch.
  Status miss_rank_1() {
    Status missed;
    require_ok(each([&](int rank) -> Status {
      if (rank == 1) return {};
      MK_RETURN_IF_ERROR(enqueue(rank, {.deadline = 400ms}));
      MK_RETURN_IF_ERROR(stream(rank).synchronize());
      if (rank == 0) missed = operation(rank).status();
      return {};
    }));
    CHECK(enqueue(0).code() == StatusCode::kFailedPrecondition);
    return missed;
  }

 private:
  struct Rank {
    bench::GpuStream stream;
    std::unique_ptr<kernels::CudaAttentionOperation> forward;  ///< of a rank alone
    std::unique_ptr<kernels::CudaAttentionBackwardOperation> operation;
    std::unique_ptr<bench::GpuRingBackwardCase> operands;
  };
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  Status make_rank(int rank, kernels::RingAttentionOptions options) {
    if (options.sms == 0) options.sms = world_->sms();
    auto stream = bench::GpuStream::create();
    if (!stream.ok()) return stream.status();
    at(rank).stream = std::move(*stream);
    auto made = kernels::make_cuda_ring_attention_backward(shape_, world_->topology(),
                                                           static_cast<std::uint32_t>(rank), options);
    if (!made.ok()) return made.status();
    at(rank).operation = std::move(*made);
    at(rank).operation->use_rings(world_->rings(rank));
    auto forward = kernels::make_cuda_attention(shape_, {1, 1}, 0, {.sms = options.sms});
    if (!forward.ok()) return forward.status();
    at(rank).forward = std::move(*forward);
    auto operands = bench::GpuRingBackwardCase::make(shape_, size(), rank, 1);
    if (!operands.ok()) return operands.status();
    at(rank).operands = std::make_unique<bench::GpuRingBackwardCase>(std::move(*operands));
    return {};
  }

  bench::GpuRingBackwardCase::Attend attend(int rank) {
    return [this, rank](const AttentionArguments& arguments) {
      return at(rank).forward->enqueue(arguments, kOptions, stream(rank).get());
    };
  }
  void synchronize() {
    require_ok(each([&](int rank) -> Status {
      MK_RETURN_IF_ERROR(stream(rank).synchronize());
      return operation(rank).status();
    }));
  }

  const AttentionShape shape_;
  std::unique_ptr<GpuWorld> world_;
  std::vector<Rank> ranks_;
};

}  // namespace

TEST_CASE("ring attention backward: a shape small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  for_every_attention({.batch = 2, .sequence = 300, .heads = 4, .kv_heads = 2},
                      [](const AttentionShape& shape) { GpuRingBackward(2, shape).check(); });
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

}  // namespace mkernel::test

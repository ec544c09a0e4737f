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
#include "kernels/cuda/memory/buffer.h"
#include "kernels/ops/make.h"
#include "tests/support/attention_backward_reference.h"
#include "tests/support/gpu_world.h"
#include "tests/support/require.h"
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
      return operation(rank).bind(world_->group(rank), workspace[r], lent[r], 1);
    }));
  }

  int size() const { return world_->size(); }
  Status each(const std::function<Status(int rank)>& body) const { return world_->each(body); }
  kernels::CudaAttentionBackwardOperation& operation(int rank) { return *at(rank).operation; }
  const bench::GpuStream& stream(int rank) { return at(rank).stream; }

  /// From the thread of the test case: new inputs on all ranks.
  void fill(std::uint64_t seed) {
    whole_ = random_attention_backward(shape_, 10 * seed + 1, 2);
    require_ok(each([&](int rank) { return fill_rank(rank); }));
  }
  Status enqueue(int rank, const ExecutorOptions& options = kOptions) {
    const Operands& o = at(rank).operands;
    return operation(rank).enqueue({.q = o.q.get(),
                                    .k = o.k.get(),
                                    .v = o.v.get(),
                                    .out = o.out.get(),
                                    .d_out = o.d_out.get(),
                                    .lse = static_cast<const float*>(o.lse.get()),
                                    .d_q = o.d_q.get(),
                                    .d_k = o.d_k.get(),
                                    .d_v = o.d_v.get()},
                                   options, stream(rank).get());
  }
  /// Of all ranks, once their streams are done.
  std::vector<AttentionGradients> gradients() {
    std::vector<AttentionGradients> by_rank(ranks_.size());
    require_ok(each([&](int rank) -> Status {
      MK_RETURN_IF_ERROR(stream(rank).synchronize());
      MK_RETURN_IF_ERROR(operation(rank).status());
      AttentionGradients& read = by_rank[static_cast<std::size_t>(rank)];
      read = poisoned_gradients_of_rank(shape_, size(), rank);
      const Operands& o = at(rank).operands;
      MK_RETURN_IF_ERROR(o.d_q.read(read.d_q.data(), read.d_q.size() * 2));
      MK_RETURN_IF_ERROR(o.d_k.read(read.d_k.data(), read.d_k.size() * 2));
      return o.d_v.read(read.d_v.data(), read.d_v.size() * 2);
    }));
    return by_rank;
  }
  void check(int launches = 3) {
    for (int launch = 1; launch <= launches; ++launch) {
      fill(static_cast<std::uint64_t>(launch));
      require_ok(each([&](int rank) { return enqueue(rank); }));
      CHECK(wrong_gradients_of_ranks(shape_, whole_, gradients(), Weights::kRounded) == 0);
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
    const std::vector<AttentionGradients> first = gradients();
    CHECK(wrong_gradients_of_ranks(shape_, whole_, first, Weights::kRounded) == 0);
    for (int round = 0; round < 10; ++round) {
      replay(replays / 10);
      CHECK(gradients() == first);
    }
    require_ok(each([&](int rank) { return enqueue(rank); }));
    CHECK(gradients() == first);
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
  struct Operands {
    kernels::DeviceBuffer q, k, v, out, d_out, lse, d_q, d_k, d_v;
  };
  struct Rank {
    bench::GpuStream stream;
    std::unique_ptr<kernels::CudaAttentionBackwardOperation> operation;
    Operands operands;
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
    return {};
  }

  /// A copy on the GPU. Ranks without positions have memory, too.
  template <class Element>
  static Status copy(std::vector<Element> tensor, kernels::DeviceBuffer& to) {
    if (tensor.empty()) tensor.resize(8);
    auto made = kernels::DeviceBuffer::holding(tensor, "an operand");
    if (made.ok()) to = std::move(*made);
    return made.status();
  }
  Status fill_rank(int rank) {
    const AttentionBackwardTensors of_rank = backward_of_rank(shape_, whole_, size(), rank);
    const AttentionGradients poisoned = poisoned_gradients_of_rank(shape_, size(), rank);
    Operands& o = at(rank).operands;
    MK_RETURN_IF_ERROR(copy(of_rank.forward.q, o.q));
    MK_RETURN_IF_ERROR(copy(of_rank.forward.k, o.k));
    MK_RETURN_IF_ERROR(copy(of_rank.forward.v, o.v));
    MK_RETURN_IF_ERROR(copy(of_rank.out, o.out));
    MK_RETURN_IF_ERROR(copy(of_rank.d_out, o.d_out));
    MK_RETURN_IF_ERROR(copy(of_rank.lse, o.lse));
    MK_RETURN_IF_ERROR(copy(poisoned.d_q, o.d_q));
    MK_RETURN_IF_ERROR(copy(poisoned.d_k, o.d_k));
    return copy(poisoned.d_v, o.d_v);
  }

  const AttentionShape shape_;
  std::unique_ptr<GpuWorld> world_;
  std::vector<Rank> ranks_;
  AttentionBackwardTensors whole_;
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
    for (const std::int64_t sequence : {1, 7, 520}) {
      CAPTURE(ranks);
      CAPTURE(sequence);
      for_every_attention({.batch = 1, .sequence = sequence, .heads = 4, .kv_heads = 2},
                          [&](const AttentionShape& shape) { GpuRingBackward(ranks, shape).check(1); });
    }
  }
}

TEST_CASE("ring attention backward: any number of CTAs that push computes the same bits") {
  if (!peers_or_skip(1)) return;
  const AttentionShape shape{
      .batch = 1, .sequence = 1100, .heads = 4, .kv_heads = 4, .head_dim = 64, .causal = true};
  std::vector<AttentionGradients> first;
  for (const std::int32_t comm_ctas : {0, 1, 3, 9}) {
    GpuRingBackward ranks(2, shape, {.comm_ctas = comm_ctas});
    ranks.check(1);
    const std::vector<AttentionGradients> gradients = ranks.gradients();
    if (first.empty()) first = gradients;
    CHECK(gradients == first);
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

// The backward pass of attention of a rank alone on the cuda executor: random inputs, poisoned outputs, every
// element against fp64, launches queued and replayed by graphs, the same bits every time.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/launch/operation.h"
#include "kernels/ops/make.h"
#include "tests/support/attention_cases.h"
#include "tests/support/gpu_held_stream.h"
#include "tests/support/gpu_world.h"
#include "tests/support/require.h"
#include "tools/mkbench/gpu_backward_case.h"
#include "tools/mkbench/gpu_stream.h"

namespace mkernel::test {
namespace {

using namespace std::chrono_literals;

constexpr ExecutorOptions kOptions{.deadline = 10s};

/// Attention and its backward pass of a rank alone, bound, with operands on the GPU.
class BackwardRank {
 public:
  explicit BackwardRank(const AttentionShape& shape, const kernels::AttentionOptions& options = {})
      : rows_(shape.batch * shape.heads * shape.sequence),
        world_(require(GpuWorld::make(1))),
        forward_(require(kernels::make_cuda_attention(shape, {1, 1}, 0))),
        operation_(require(kernels::make_cuda_attention_backward(shape, {1, 1}, 0, options))),
        stream_(require(bench::GpuStream::create())),
        operands_(require(bench::GpuBackwardCase::make(shape))) {
    require_ok(forward_->bind(world_->group(0), {}, {}, 1));
    require_ok(operation_->bind(world_->group(0), {}, {}, 1));
  }

  GpuWorld& world() { return *world_; }
  kernels::CudaAttentionBackwardOperation& operation() { return *operation_; }
  const bench::GpuStream& stream() const { return stream_; }
  AttentionBackwardArguments arguments() const { return operands_.arguments(); }

  /// Queues new inputs, what attention makes of them, and poison into the gradients. `scale`: of queries and
  /// keys.
  void fill(std::uint64_t seed, float scale = 2) {
    require_ok(operands_.fill(0, seed, stream_.get(), scale));
    require_ok(forward_->enqueue(operands_.forward(), kOptions, stream_.get()));
  }
  void poison() { require_ok(operands_.poison_gradients(0, stream_.get())); }
  Status enqueue() { return operation_->enqueue(arguments(), kOptions, stream_.get()); }
  /// What a launch has left; of many rows about `looked` queries and as many keys or fewer.
  void verify(std::int64_t looked = 1 << 12) {
    const auto check = require(operands_.check(0, sampling_step(rows_, looked), stream_.get()));
    CHECK_MESSAGE(check.wrong == 0, check.wrong << " of " << check.elements << " elements, one at "
                                                << check.first_wrong << ", worst of bound " << check.worst);
  }
  void run_checked(std::uint64_t seed, float scale = 2, std::int64_t looked = 1 << 12) {
    fill(seed, scale);
    require_ok(stream_.synchronize());  // run() has a stream of its own
    require_ok(operation_->run(arguments(), kOptions));
    verify(looked);
  }
  /// Of the gradients. Waits for the stream.
  std::uint64_t digest() const { return require(operands_.digest(0, stream_.get())); }

 private:
  const std::int64_t rows_;
  std::unique_ptr<GpuWorld> world_;
  std::unique_ptr<kernels::CudaAttentionOperation> forward_;
  std::unique_ptr<kernels::CudaAttentionBackwardOperation> operation_;
  bench::GpuStream stream_;
  bench::GpuBackwardCase operands_;
};

void check(const AttentionShape& shape, float scale = 2, std::int64_t looked = 1 << 12,
           const kernels::AttentionOptions& options = {}) {
  BackwardRank rank(shape, options);
  CAPTURE(rank.operation().signature());
  rank.run_checked(1, scale, looked);
}

constexpr AttentionShape kSmall{.batch = 2, .sequence = 200, .heads = 4, .kv_heads = 2, .head_dim = 64};

}  // namespace

TEST_CASE("attention backward: a shape small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  // Several tasks for each of few CTAs.
  for_every_mask({.batch = 2, .sequence = 130, .heads = 2, .kv_heads = 1},
                 [](const AttentionShape& shape) { check(shape, 2, 1 << 12, {.sms = 2}); });
}

TEST_CASE("attention backward: the cases of both executors") {
  if (!peers_or_skip(1)) return;
  for_every_attention_case(4096, [](const AttentionShape& shape, float scale) { check(shape, scale); });
}

TEST_CASE("attention backward: long sequences") {
  if (!peers_or_skip(1)) return;
  for_every_attention({.batch = 1, .sequence = 4096, .heads = 32, .kv_heads = 4},
                      [](const AttentionShape& shape) { check(shape); });
  check(kLongAttention, 2, 256);
  check({.batch = 1, .sequence = 100003, .heads = 4, .kv_heads = 2, .head_dim = 128}, 2, 256);
}

TEST_CASE("attention backward: captured in a graph and replayed 1,000 times, the same bits every time") {
  if (!peers_or_skip(1)) return;
  for (const bool causal : {false, true}) {
    BackwardRank rank(
        {.batch = 2, .sequence = 2500, .heads = 6, .kv_heads = 2, .head_dim = 128, .causal = causal});
    const auto graph = require(bench::GpuGraph::capture(rank.stream(), [&] { return rank.enqueue(); }));
    for (std::uint64_t round = 0; round < 4; ++round) {
      CAPTURE(round);
      rank.fill(round);
      require_ok(graph.launch(rank.stream()));
      rank.verify(256);
      const std::uint64_t first = rank.digest();
      for (int replay = 1; replay < 250; ++replay) {
        if (replay % 50 == 0) rank.poison();
        require_ok(graph.launch(rank.stream()));
        if (replay % 10 == 0) CHECK(rank.digest() == first);
      }
      CHECK(rank.digest() == first);
      require_ok(rank.operation().status());
    }
  }
}

TEST_CASE("attention backward: few multiprocessors compute the same bits as all of them") {
  if (!peers_or_skip(1)) return;
  const AttentionShape shape{
      .batch = 1, .sequence = 1000, .heads = 2, .kv_heads = 2, .head_dim = 64, .causal = true};
  BackwardRank all(shape), few(shape, {.sms = 5});
  all.run_checked(1);
  few.run_checked(1);
  CHECK(all.digest() == few.digest());
}

TEST_CASE("attention backward: the later keys upwards, and what that takes" * doctest::skip()) {
  if (!peers_or_skip(1)) return;
  constexpr int kLaunches = 20;
  for (const AttentionShape& shape :
       {AttentionShape{.batch = 1, .sequence = 8192, .heads = 64, .kv_heads = 8, .head_dim = 128},
        {.batch = 1, .sequence = 16384, .heads = 64, .kv_heads = 8, .head_dim = 128},
        {.batch = 2, .sequence = 8192, .heads = 32, .kv_heads = 8, .head_dim = 128},
        {.batch = 1, .sequence = 8192, .heads = 64, .kv_heads = 8, .head_dim = 64}}) {
    AttentionShape causal = shape;
    causal.causal = true;
    BackwardRank all_downwards(causal), later_upwards(causal, {.later_keys_upwards = true});
    double best[2] = {1e9, 1e9};
    for (int round = 0; round < 5; ++round) {
      int which = 0;
      for (BackwardRank* rank : {&all_downwards, &later_upwards}) {
        rank->fill(1, 1);
        require_ok(rank->enqueue());
        require_ok(rank->stream().synchronize());
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < kLaunches; ++i) require_ok(rank->enqueue());
        require_ok(rank->stream().synchronize());
        const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
        best[which] = std::min(best[which], took.count() / kLaunches);
        ++which;
        rank->verify(256);
      }
    }
    MESSAGE(all_downwards.operation().signature()
            << ": all downwards " << best[0] << " ms, later keys upwards " << best[1] << " ms");
  }
}

TEST_CASE("attention backward: a group that failed ends the launches, with the group's reason") {
  if (!peers_or_skip(1)) return;
  BackwardRank rank(kSmall);
  rank.run_checked(1);
  rank.poison();
  const std::uint64_t poison = rank.digest();
  rank.world().fail_group(0, static_cast<std::uint32_t>(StatusCode::kUnavailable), "node b is gone");
  {  // until both are queued: one that is queued when the first has failed is refused at once
    const HeldStream held(rank.stream().get());
    require_ok(held.status());
    require_ok(rank.enqueue());
    rank.poison();
    require_ok(rank.enqueue());
    CHECK(held.holds());
  }
  CHECK(rank.digest() == poison);  // the one behind it does nothing
  const Status failed = rank.operation().status();
  CHECK(failed.code() == StatusCode::kUnavailable);
  CHECK_MESSAGE(failed.text().find("node b is gone") != std::string::npos, failed.text());
  CHECK(rank.enqueue().code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("attention backward: operands and shapes that the kernel does not take are refused by name") {
  if (!peers_or_skip(1)) return;
  BackwardRank rank(kSmall);
  AttentionBackwardArguments bad = rank.arguments();
  bad.d_k = static_cast<std::byte*>(bad.d_k) + 8;
  CHECK(rank.operation().enqueue(bad, kOptions, rank.stream().get()).to_string() ==
        "INVALID_ARGUMENT: attention_backward: matrix d_k: address modulo 16 is 8, must be 0");
  rank.run_checked(1);
  AttentionShape shape = kSmall;
  shape.head_dim = 96;
  CHECK(kernels::make_cuda_attention_backward(shape, {1, 1}, 0).status().to_string() ==
        "INVALID_ARGUMENT: attention_backward: head_dim = 96, but it must be 64 or 128 on the cuda executor");
}

}  // namespace mkernel::test

// Attention of a rank alone on the cuda executor: random inputs, poisoned outputs, every element against
// fp64, launches queued and replayed by graphs, the same bits every time.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/error.h"
#include "kernels/ops/make.h"
#include "tests/support/attention_cases.h"
#include "tests/support/gpu_held_stream.h"
#include "tests/support/gpu_two_launches.h"
#include "tests/support/gpu_world.h"
#include "tests/support/require.h"
#include "tools/mkbench/gpu_attention_case.h"
#include "tools/mkbench/gpu_attention_reference.h"
#include "tools/mkbench/gpu_stream.h"

namespace mkernel::test {
namespace {

using namespace std::chrono_literals;

constexpr ExecutorOptions kOptions{.deadline = 10s};

/// An operation of a rank alone, bound, with operands on the GPU.
class AttentionRank {
 public:
  explicit AttentionRank(const AttentionShape& shape, const kernels::AttentionOptions& options = {})
      : shape_(shape),
        world_(require(GpuWorld::make(1))),
        operation_(require(kernels::make_cuda_attention(shape, {1, 1}, 0, options))),
        stream_(require(bench::GpuStream::create())),
        operands_(require(bench::GpuAttentionCase::make(shape, 1, 0))) {
    require_ok(operation_->bind(world_->group(0), {}, {}, 1));
  }

  GpuWorld& world() { return *world_; }
  kernels::CudaAttentionOperation& operation() { return *operation_; }
  const bench::GpuStream& stream() const { return stream_; }
  AttentionArguments arguments() const { return operands_.arguments(); }

  /// Queues new inputs, and poison into the outputs. `scale`: of queries and keys.
  void fill(std::uint64_t seed, float scale = 2) {
    require_ok(operands_.fill(0, seed, stream_.get(), scale));
  }
  Status enqueue() { return operation_->enqueue(arguments(), kOptions, stream_.get()); }
  /// What a launch has left, every `step`-th query of it.
  void verify(std::int64_t step = 1) {
    const auto check = require(operands_.check(0, step, stream_.get()));
    CHECK_MESSAGE(check.wrong == 0, check.wrong << " of " << check.elements << " elements, one at "
                                                << check.first_wrong << ", worst of bound " << check.worst);
  }
  void run_checked(std::uint64_t seed, float scale = 2, std::int64_t step = 1) {
    fill(seed, scale);
    require_ok(stream_.synchronize());  // run() has a stream of its own
    require_ok(operation_->run(arguments(), kOptions));
    verify(step);
  }
  /// Of the outputs. Waits for the stream.
  std::uint64_t digest() const { return require(operands_.digest(0, stream_.get())); }
  /// With as many keys as queries.
  void set_values_from(std::int64_t position, std::uint16_t bits) {
    const std::int64_t row = shape_.kv_heads * shape_.head_dim;
    const std::vector<std::uint16_t> rows(
        static_cast<std::size_t>((shape_.batch * shape_.sequence - position) * row), bits);
    require_ok(kernels::cuda_status(
        cudaMemcpyAsync(static_cast<std::uint16_t*>(const_cast<void*>(arguments().v)) + position * row,
                        rows.data(), rows.size() * 2, cudaMemcpyHostToDevice, stream_.get()),
        "values"));
    require_ok(stream_.synchronize());
  }

 private:
  const AttentionShape shape_;
  std::unique_ptr<GpuWorld> world_;
  std::unique_ptr<kernels::CudaAttentionOperation> operation_;
  bench::GpuStream stream_;
  bench::GpuAttentionCase operands_;
};

/// A rank for every size of heads, mask and type.
template <class Check>
void for_all(const AttentionShape& of, const Check& check) {
  for_every_attention(of, [&](const AttentionShape& shape) {
    AttentionRank rank(shape);
    CAPTURE(rank.operation().signature());
    check(rank);
  });
}

constexpr AttentionShape kSmall{.batch = 2, .sequence = 200, .heads = 4, .kv_heads = 2, .head_dim = 64};

}  // namespace

TEST_CASE("attention: a shape small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  // A task for each CTA: racecheck does not see that all lanes have read a task before the next one is
  // written.
  for_every_mask({.batch = 2, .sequence = 200, .heads = 2, .kv_heads = 1},
                 [](const AttentionShape& shape) { AttentionRank(shape).run_checked(1); });
}

TEST_CASE("attention: the cases of both executors") {
  if (!peers_or_skip(1)) return;
  for_every_attention_case(4096, [](const AttentionShape& shape, float scale) {
    AttentionRank rank(shape);
    CAPTURE(rank.operation().signature());
    rank.run_checked(1, scale);
  });
}

TEST_CASE("attention: long sequences") {
  if (!peers_or_skip(1)) return;
  for_all({.batch = 1, .sequence = 4096, .heads = 32, .kv_heads = 4},
          [](AttentionRank& rank) { rank.run_checked(2); });
  AttentionRank(kLongAttention).run_checked(1, 2, sampling_step(kLongAttention.sequence, 256));
  for (const bool causal : {false, true}) {
    AttentionRank rank(
        {.batch = 1, .sequence = 100003, .heads = 4, .kv_heads = 2, .head_dim = 128, .causal = causal});
    rank.run_checked(1, 2, 997);
  }
}

TEST_CASE("attention: what lies behind a sequence is not read") {
  if (!peers_or_skip(1)) return;
  AttentionRank rank({.batch = 2, .sequence = 50, .heads = 1, .kv_heads = 1, .head_dim = 128});
  rank.fill(1);
  rank.set_values_from(50, 0x7fff);
  require_ok(rank.enqueue());
  const auto check = require(bench::check_attention(
      rank.arguments(), {.batch = 1, .sequence = 50, .heads = 1, .kv_heads = 1, .head_dim = 128, .keys = 50},
      {{Range{0, 50}, Range{}}}, 1, rank.stream().get()));
  CHECK(check.wrong == 0);
}

TEST_CASE("attention: captured in a graph and replayed 1,000 times, the same bits every time") {
  if (!peers_or_skip(1)) return;
  for (const bool causal : {false, true}) {
    AttentionRank rank(
        {.batch = 2, .sequence = 2500, .heads = 6, .kv_heads = 2, .head_dim = 128, .causal = causal});
    const auto graph = require(bench::GpuGraph::capture(rank.stream(), [&] { return rank.enqueue(); }));
    for (std::uint64_t round = 0; round < 4; ++round) {
      CAPTURE(round);
      rank.fill(round);
      require_ok(graph.launch(rank.stream()));
      rank.verify(7);
      require_ok(rank.operation().status());
      const std::uint64_t first = rank.digest();
      for (int replay = 1; replay < 250; ++replay) {
        require_ok(graph.launch(rank.stream()));
        if (replay % 3 == 0) CHECK(rank.digest() == first);
      }
    }
  }
}

TEST_CASE("attention: few multiprocessors compute the same bits as all of them") {
  if (!peers_or_skip(1)) return;
  const AttentionShape shape{
      .batch = 1, .sequence = 1500, .heads = 4, .kv_heads = 4, .head_dim = 64, .causal = true};
  AttentionRank all(shape), few(shape, {.sms = 5});
  all.run_checked(1);
  few.run_checked(1);
  CHECK(all.digest() == few.digest());
}

TEST_CASE("attention: a group that failed ends the launches, with the group's reason") {
  if (!peers_or_skip(1)) return;
  AttentionRank rank(kSmall);
  rank.run_checked(1);
  rank.world().fail_group(0, static_cast<std::uint32_t>(StatusCode::kUnavailable), "node b is gone");
  rank.fill(2);
  require_ok(rank.stream().synchronize());
  {  // until both are queued: one that is queued when the first has failed is refused at once
    const HeldStream held(rank.stream().get());
    require_ok(held.status());
    require_ok(rank.enqueue());
    rank.fill(3);
    require_ok(rank.enqueue());
    CHECK(held.holds());
  }
  const std::uint64_t left = rank.digest();
  rank.fill(4);
  CHECK(rank.digest() == left);  // the one behind it has left the poison
  const Status failed = rank.operation().status();
  CHECK(failed.code() == StatusCode::kUnavailable);
  CHECK_MESSAGE(failed.text().find("node b is gone") != std::string::npos, failed.text());
  CHECK(rank.enqueue().code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("attention: operands and shapes that the kernel does not take are refused by name") {
  if (!peers_or_skip(1)) return;
  AttentionRank rank(kSmall);
  AttentionArguments bad = rank.arguments();
  bad.v = static_cast<const std::byte*>(bad.v) + 8;
  const Status status = rank.operation().enqueue(bad, kOptions, rank.stream().get());
  CHECK(status.to_string() == "INVALID_ARGUMENT: attention: matrix v: address modulo 16 is 8, must be 0");
  rank.run_checked(1);
  AttentionShape shape = kSmall;
  for (const std::int64_t head_dim : {96, 192, 256}) {
    shape.head_dim = head_dim;
    CHECK(kernels::make_cuda_attention(shape, {1, 1}, 0).status().to_string() ==
          "INVALID_ARGUMENT: attention: head_dim = " + std::to_string(head_dim) +
              ", but it must be 64 or 128 on the cuda executor");
  }
}

TEST_CASE("attention: of two launches at a time one says so, and nothing is launched after them") {
  if (!peers_or_skip(1)) return;
  const AttentionShape shape{.batch = 1, .sequence = 8192, .heads = 16, .kv_heads = 16, .head_dim = 128};
  AttentionRank rank(shape, {.sms = half_of_the_sms()});
  rank.run_checked(1, 2, 1021);
  const auto launch = [&](CUstream_st* stream) {
    return rank.operation().enqueue(rank.arguments(), kOptions, stream);
  };
  launch_at_the_same_time(launch, launch);
  check_not_alone(rank.operation().status(), "attention");
  CHECK(rank.enqueue().code() == StatusCode::kFailedPrecondition);
}

}  // namespace mkernel::test

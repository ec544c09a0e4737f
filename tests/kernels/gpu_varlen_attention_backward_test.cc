// The backward pass of attention of sequences of different lengths on the cuda executor: random inputs,
// poisoned gradients, elements against fp64, lengths that are refused, graphs replayed with other lengths.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/launch/operation.h"
#include "kernels/ops/make.h"
#include "tests/support/gpu_world.h"
#include "tests/support/require.h"
#include "tests/support/varlen_reference.h"
#include "tools/mkbench/gpu_stream.h"
#include "tools/mkbench/gpu_varlen_backward_case.h"

namespace mkernel::test {
namespace {

using namespace std::chrono_literals;

constexpr ExecutorOptions kOptions{.deadline = 10s};

/// Attention and its backward pass of a rank alone, bound, with operands on the GPU.
class VarlenBackwardRank {
 public:
  explicit VarlenBackwardRank(const AttentionShape& shape, const kernels::AttentionOptions& options = {})
      : world_(require(GpuWorld::make(1))),
        forward_(require(kernels::make_cuda_attention(shape, {1, 1}, 0))),
        operation_(require(kernels::make_cuda_attention_backward(shape, {1, 1}, 0, options))),
        stream_(require(bench::GpuStream::create())),
        operands_(require(bench::GpuVarlenBackwardCase::make(shape))) {
    require_ok(forward_->bind(world_->group(0), {}, {}, 1));
    require_ok(operation_->bind(world_->group(0), {}, {}, 1));
  }

  kernels::CudaAttentionBackwardOperation& operation() { return *operation_; }
  const bench::GpuStream& stream() const { return stream_; }

  /// Queues new inputs, these lengths, what attention makes of them, and poison into the gradients.
  void fill(const SequenceLengths& lengths, std::uint64_t seed) {
    require_ok(operands_.fill(seed, stream_.get(), 2));
    require_ok(operands_.set_lengths(lengths.q, lengths.k, stream_.get()));
    require_ok(forward_->enqueue(operands_.forward(), kOptions, stream_.get()));
  }
  void poison() { require_ok(operands_.poison_gradients(stream_.get())); }
  void set_lengths(const SequenceLengths& lengths) {
    require_ok(operands_.set_lengths(lengths.q, lengths.k, stream_.get()));
  }
  Status enqueue() { return operation_->enqueue(operands_.arguments(), kOptions, stream_.get()); }
  /// What a launch with these lengths has left, every `step`-th row of it.
  void verify(const SequenceLengths& lengths, std::int64_t step = 1) {
    const auto check = require(operands_.check(lengths.q, lengths.k, step, stream_.get()));
    CHECK_MESSAGE(check.wrong == 0, check.wrong << " of " << check.elements << " elements, one at "
                                                << check.first_wrong << ", worst of bound " << check.worst);
    CHECK(written_from(lengths.q.back(), lengths.k.back()) == 0);
  }
  void run_checked(const SequenceLengths& lengths, std::uint64_t seed, std::int64_t step = 1) {
    fill(lengths, seed);
    require_ok(stream_.synchronize());  // run() has a stream of its own
    require_ok(operation_->run(operands_.arguments(), kOptions));
    CHECK_FALSE(operation_->refused());
    verify(lengths, step);
  }
  std::uint64_t written_from(std::int64_t query, std::int64_t key) const {
    return require(operands_.written_from(query, key, stream_.get()));
  }
  /// Of the gradients. Waits for the stream.
  std::uint64_t digest() const { return require(operands_.digest(stream_.get())); }

 private:
  std::unique_ptr<GpuWorld> world_;
  std::unique_ptr<kernels::CudaAttentionOperation> forward_;
  std::unique_ptr<kernels::CudaAttentionBackwardOperation> operation_;
  bench::GpuStream stream_;
  bench::GpuVarlenBackwardCase operands_;
};

/// A rank for every size of heads, mask and type.
template <class Check>
void for_all(const AttentionShape& of, const Check& check) {
  for_every_attention(of, [&](const AttentionShape& shape) {
    VarlenBackwardRank rank(shape);
    CAPTURE(rank.operation().signature());
    check(rank);
  });
}

constexpr AttentionShape kRagged{.batch = 1,
                                 .sequence = 760,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 64,
                                 .keys = 1030,
                                 .max_sequences = 11};

}  // namespace

TEST_CASE("varlen attention backward: ragged sequences small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  for_all(kRagged, [](VarlenBackwardRank& rank) { rank.run_checked(ragged_lengths(11), 1); });
}

TEST_CASE("varlen attention backward: many sequences, few heads and many, a long one among short ones") {
  if (!peers_or_skip(1)) return;
  for (const auto& [count, most] : {std::pair{1, 5000}, {40, 700}, {1024, 60}}) {
    const SequenceLengths lengths = many_lengths(count, most, 7);
    for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {16, 2}}) {
      AttentionShape shape = kRagged;
      shape.sequence = std::max(lengths.q.back(), 1) + 100;
      shape.keys = std::max(lengths.k.back(), 1) + 100;
      shape.heads = heads;
      shape.kv_heads = kv_heads;
      shape.max_sequences = count;
      for_all(shape, [&](VarlenBackwardRank& rank) { rank.run_checked(lengths, 2, count == 1024 ? 1 : 7); });
    }
  }
  AttentionShape shape = kRagged;
  shape.sequence = shape.keys = 33000;
  shape.max_sequences = 4;
  for_all(shape, [](VarlenBackwardRank& rank) {
    const std::vector<std::int32_t> lengths{7, 32700, 130, 1};
    rank.run_checked(sequence_lengths(lengths, lengths, 4), 3, 301);
  });
}

TEST_CASE("varlen attention backward: keys whose sequence has no queries get zeros, however many they are") {
  if (!peers_or_skip(1)) return;
  AttentionShape shape = kRagged;
  shape.keys = 40000;
  for_all(shape, [](VarlenBackwardRank& rank) {
    rank.run_checked(sequence_lengths({0, 300, 0, 0}, {30000, 200, 1, 9000}, 11), 1, 3);
  });
}

TEST_CASE("varlen attention backward: bad lengths are refused, and the next launches come") {
  if (!peers_or_skip(1)) return;
  VarlenBackwardRank rank(kRagged);
  const SequenceLengths good = ragged_lengths(11);
  rank.run_checked(good, 1);
  const std::uint64_t first = rank.digest();
  SequenceLengths bad = good;
  bad.k[4] = 178;
  rank.poison();
  rank.set_lengths(bad);
  require_ok(rank.enqueue());
  CHECK(rank.written_from(0, 0) == 0);
  CHECK(rank.operation().status().text() ==
        "attention_backward: cu_seqlens_k[4] = 178, but it must be 179..1030");
  CHECK(rank.operation().refused());
  // What is counted over all launches is as if it had computed.
  for (int launch = 0; launch < 3; ++launch) {
    rank.set_lengths(good);
    rank.poison();
    require_ok(rank.enqueue());
    CHECK(rank.digest() == first);
    require_ok(rank.operation().status());
  }
}

TEST_CASE(
    "varlen attention backward: a graph replayed 1,000 times with other lengths, the same bits always") {
  if (!peers_or_skip(1)) return;
  for (const bool causal : {false, true}) {
    AttentionShape shape = kRagged;
    shape.sequence = shape.keys = 9000;
    shape.causal = causal;
    shape.max_sequences = 30;
    VarlenBackwardRank rank(shape);
    const auto graph = require(bench::GpuGraph::capture(rank.stream(), [&] { return rank.enqueue(); }));
    for (std::uint32_t round = 0; round < 4; ++round) {
      CAPTURE(round);
      const SequenceLengths lengths = many_lengths(30, round == 3 ? 0 : 250, round);
      rank.fill(lengths, round);
      require_ok(graph.launch(rank.stream()));
      rank.verify(lengths, 3);
      require_ok(rank.operation().status());
      const std::uint64_t first = rank.digest();
      for (int replay = 1; replay < 250; ++replay) {
        if (replay % 3 == 0) rank.poison();
        require_ok(graph.launch(rank.stream()));
        if (replay % 3 == 0) CHECK(rank.digest() == first);
      }
    }
  }
}

TEST_CASE("varlen attention backward: few multiprocessors compute the same bits as all of them") {
  if (!peers_or_skip(1)) return;
  AttentionShape shape = kRagged;
  shape.causal = true;
  VarlenBackwardRank all(shape), few(shape, {.sms = 3});
  all.run_checked(ragged_lengths(11), 1);
  few.run_checked(ragged_lengths(11), 1);
  CHECK(all.digest() == few.digest());
}

}  // namespace mkernel::test

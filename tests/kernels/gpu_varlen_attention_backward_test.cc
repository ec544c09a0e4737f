// The backward pass of attention of sequences of different lengths, and of sliding windows, on the cuda
// executor: random inputs, poisoned gradients, elements against fp64, lengths that are refused, graphs
// replayed with other lengths.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/launch/operation.h"
#include "kernels/ops/make.h"
#include "tests/kernels/gpu_varlen_rank.h"
#include "tests/support/gpu_world.h"
#include "tests/support/require.h"
#include "tests/support/varlen_reference.h"
#include "tools/mkbench/gpu_backward_case.h"
#include "tools/mkbench/gpu_stream.h"
#include "tools/mkbench/gpu_varlen_backward_case.h"

namespace mkernel::test {
namespace {

/// Before it attention, whose outputs it is given.
class Backward {
 public:
  using Operation = kernels::CudaAttentionBackwardOperation;
  using Operands = bench::GpuVarlenBackwardCase;

  explicit Backward(const AttentionShape& shape)
      : forward_(require(kernels::make_cuda_attention(shape, {1, 1}, 0))) {}
  static auto make(const AttentionShape& shape, const kernels::AttentionOptions& options) {
    return kernels::make_cuda_attention_backward(shape, {1, 1}, 0, options);
  }
  Status bind(const kernels::GroupView& group) { return forward_->bind(group, {}, {}, 1); }
  Status fill(const Operands& operands, CUstream_st* stream) {
    return forward_->enqueue(operands.forward(), kVarlenOptions, stream);
  }
  static auto written_from(const Operands& operands, std::int64_t query, std::int64_t key,
                           CUstream_st* stream) {
    return operands.written_from(query, key, stream);
  }

 private:
  std::unique_ptr<kernels::CudaAttentionOperation> forward_;
};
using VarlenBackwardRank = GpuVarlenRank<Backward>;

void poison(VarlenBackwardRank& rank) {
  require_ok(rank.operands().poison_gradients(rank.stream().get()));
}

}  // namespace

TEST_CASE("varlen attention backward: ragged sequences small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  for_every_mask(kFewVarlen, [](const AttentionShape& shape) {
    VarlenBackwardRank(shape, kFewVarlenCtas).run_checked(few_lengths(), 1);
  });
  for (const std::int64_t head_dim : {64, 128}) {
    AttentionShape shape = kFewVarlen;
    shape.head_dim = head_dim;
    shape.window_left = 70;
    shape.window_right = 5;
    VarlenBackwardRank(shape, kFewVarlenCtas).run_checked(few_lengths(), 1);
  }
}

TEST_CASE("varlen attention backward: sliding windows at every border of a tile") {
  if (!peers_or_skip(1)) return;
  for (const auto& [left, right] : kBorderWindows) {
    AttentionShape shape = kRaggedVarlen;
    shape.window_left = left;
    shape.window_right = right;
    for (const std::int64_t head_dim : {64, 128}) {
      for (const DataType type : {DataType::kBf16, DataType::kF16}) {
        shape.head_dim = head_dim;
        shape.dtype = type;
        VarlenBackwardRank rank(shape);
        CAPTURE(rank.operation().signature());
        rank.run_checked(ragged_lengths(11), 1);
      }
    }
  }
}

TEST_CASE("varlen attention backward: windows of long sequences, many short ones, and the same bits always") {
  if (!peers_or_skip(1)) return;
  for (const auto& [count, most] : {std::pair{2, 20000}, {300, 200}}) {
    const SequenceLengths lengths = many_lengths(count, most, 3);
    AttentionShape shape = kRaggedVarlen;
    shape.sequence = lengths.q.back() + 100;
    shape.keys = lengths.k.back() + 100;
    shape.heads = 16;
    shape.head_dim = 128;
    shape.causal = true;
    shape.max_sequences = count;
    shape.window_left = 1000;
    VarlenBackwardRank all(shape), few(shape, {.sms = 5});
    all.run_checked(lengths, 1, 301);
    few.run_checked(lengths, 1, 301);
    const std::uint64_t first = all.digest();
    CHECK(few.digest() == first);
    for (int launch = 0; launch < 20; ++launch) {
      poison(all);
      require_ok(all.enqueue());
      CHECK(all.digest() == first);
    }
  }
}

TEST_CASE("varlen attention backward: a window of sequences of one length") {
  if (!peers_or_skip(1)) return;
  for (const bool causal : {false, true}) {
    const AttentionShape shape{.batch = 3,
                               .sequence = 1500,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 128,
                               .causal = causal,
                               .keys = causal ? 2100 : 1500,
                               .window_left = 300,
                               .window_right = causal ? -1 : 20};
    auto world = require(GpuWorld::make(1));
    auto forward = require(kernels::make_cuda_attention(shape, {1, 1}, 0));
    auto backward = require(kernels::make_cuda_attention_backward(shape, {1, 1}, 0));
    require_ok(forward->bind(world->group(0), {}, {}, 1));
    require_ok(backward->bind(world->group(0), {}, {}, 1));
    const auto stream = require(bench::GpuStream::create());
    auto operands = require(bench::GpuBackwardCase::make(shape));
    require_ok(operands.fill(0, 1, stream.get(), 2));
    require_ok(forward->enqueue(operands.forward(), kVarlenOptions, stream.get()));
    require_ok(backward->enqueue(operands.arguments(), kVarlenOptions, stream.get()));
    CHECK(require(operands.check(0, 1, stream.get())).wrong == 0);
  }
}

TEST_CASE("varlen attention backward: many sequences, few heads and many, a long one among short ones") {
  if (!peers_or_skip(1)) return;
  for (const auto& [count, most] : {std::pair{1, 5000}, {40, 700}, {1024, 60}}) {
    const SequenceLengths lengths = many_lengths(count, most, 7);
    for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {16, 2}}) {
      AttentionShape shape = kRaggedVarlen;
      shape.sequence = std::max(lengths.q.back(), 1) + 100;
      shape.keys = std::max(lengths.k.back(), 1) + 100;
      shape.heads = heads;
      shape.kv_heads = kv_heads;
      shape.max_sequences = count;
      for_all_varlen<Backward>(
          shape, [&](VarlenBackwardRank& rank) { rank.run_checked(lengths, 2, count == 1024 ? 1 : 7); });
    }
  }
  AttentionShape shape = kRaggedVarlen;
  shape.sequence = shape.keys = 33000;
  shape.max_sequences = 4;
  for_all_varlen<Backward>(shape, [](VarlenBackwardRank& rank) {
    const std::vector<std::int32_t> lengths{7, 32700, 130, 1};
    rank.run_checked(sequence_lengths(lengths, lengths, 4), 3, 301);
  });
}

TEST_CASE("varlen attention backward: keys whose sequence has no queries get zeros, however many they are") {
  if (!peers_or_skip(1)) return;
  AttentionShape shape = kRaggedVarlen;
  shape.keys = 40000;
  for_all_varlen<Backward>(shape, [](VarlenBackwardRank& rank) {
    rank.run_checked(sequence_lengths({0, 300, 0, 0}, {30000, 200, 1, 9000}, 11), 1, 3);
  });
}

TEST_CASE("varlen attention backward: bad lengths are refused, and the next launches come") {
  if (!peers_or_skip(1)) return;
  VarlenBackwardRank rank(kRaggedVarlen);
  const SequenceLengths good = ragged_lengths(11);
  rank.run_checked(good, 1);
  const std::uint64_t first = rank.digest();
  SequenceLengths bad = good;
  bad.k[4] = 178;
  poison(rank);
  rank.set_lengths(bad);
  require_ok(rank.enqueue());
  CHECK(rank.written_from(0, 0) == 0);
  CHECK(rank.operation().status().text() ==
        "attention_backward: cu_seqlens_k[4] = 178, but it must be 179..1030");
  CHECK(rank.operation().refused());
  // What is counted over all launches is as if it had computed.
  for (int launch = 0; launch < 3; ++launch) {
    rank.set_lengths(good);
    poison(rank);
    require_ok(rank.enqueue());
    CHECK(rank.digest() == first);
    require_ok(rank.operation().status());
  }
}

TEST_CASE(
    "varlen attention backward: a graph replayed 1,000 times with other lengths, the same bits always") {
  if (!peers_or_skip(1)) return;
  for (const bool causal : {false, true}) {
    AttentionShape shape = kRaggedVarlen;
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
        if (replay % 3 == 0) poison(rank);
        require_ok(graph.launch(rank.stream()));
        if (replay % 3 == 0) CHECK(rank.digest() == first);
      }
    }
  }
}

TEST_CASE("varlen attention backward: few multiprocessors compute the same bits as all of them") {
  if (!peers_or_skip(1)) return;
  AttentionShape shape = kRaggedVarlen;
  shape.causal = true;
  VarlenBackwardRank all(shape), few(shape, {.sms = 3});
  all.run_checked(ragged_lengths(11), 1);
  few.run_checked(ragged_lengths(11), 1);
  CHECK(all.digest() == few.digest());
}

}  // namespace mkernel::test

// Attention of sequences of different lengths, and sliding windows, on the cuda executor: random inputs,
// poisoned outputs, every element against fp64, lengths that are refused, graphs replayed with other lengths.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/launch/operation.h"
#include "kernels/ops/make.h"
#include "tests/kernels/gpu_varlen_rank.h"
#include "tests/support/gpu_world.h"
#include "tests/support/require.h"
#include "tests/support/varlen_reference.h"
#include "tools/mkbench/gpu_attention_case.h"
#include "tools/mkbench/gpu_stream.h"
#include "tools/mkbench/gpu_varlen_case.h"

namespace mkernel::test {
namespace {

struct Forward {
  using Operation = kernels::CudaAttentionOperation;
  using Operands = bench::GpuVarlenCase;

  explicit Forward(const AttentionShape&) {}
  static auto make(const AttentionShape& shape, const kernels::AttentionOptions& options) {
    return kernels::make_cuda_attention(shape, {1, 1}, 0, options);
  }
  static Status bind(const kernels::GroupView&) { return {}; }
  static Status fill(const Operands&, CUstream_st*) { return {}; }
  static auto written_from(const Operands& operands, std::int64_t query, std::int64_t, CUstream_st* stream) {
    return operands.written_from(query, stream);
  }
};
using VarlenRank = GpuVarlenRank<Forward>;

/// One launch that is refused with these words, and writes nothing.
void run_refused(VarlenRank& rank, const SequenceLengths& lengths, const std::string& text) {
  rank.fill(lengths, 1);
  CHECK(rank.run().to_string() == "INVALID_ARGUMENT: attention: " + text);
  CHECK(rank.operation().refused());
  CHECK(rank.written_from(0, 0) == 0);
  CHECK(rank.operation().status().to_string() == "OK");  // it was told
}

}  // namespace

TEST_CASE("varlen attention: ragged sequences small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  for_every_mask(kFewVarlen,
                 [](const AttentionShape& shape) { VarlenRank(shape).run_checked(few_lengths(), 1); });
}

TEST_CASE("varlen attention: many sequences, few heads and many, one long sequence among short ones") {
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
      for_all_varlen<Forward>(shape, [&](VarlenRank& rank) { rank.run_checked(lengths, 2); });
    }
  }
  AttentionShape shape = kRaggedVarlen;
  shape.sequence = shape.keys = 33000;
  shape.max_sequences = 4;
  for_all_varlen<Forward>(shape, [](VarlenRank& rank) {
    const std::vector<std::int32_t> lengths{7, 32700, 130, 1};
    rank.run_checked(sequence_lengths(lengths, lengths, 4), 3, 61);
  });
}

TEST_CASE("varlen attention: sliding windows at every border of a tile") {
  if (!peers_or_skip(1)) return;
  for (const auto& [left, right] : kBorderWindows) {
    for (const std::int64_t head_dim : {64, 128}) {
      AttentionShape shape = kRaggedVarlen;
      shape.head_dim = head_dim;
      shape.window_left = left;
      shape.window_right = right;
      VarlenRank rank(shape);
      CAPTURE(rank.operation().signature());
      rank.run_checked(ragged_lengths(11), 1);
    }
  }
}

TEST_CASE("varlen attention: a window of sequences of one length") {
  if (!peers_or_skip(1)) return;
  for (const bool causal : {false, true}) {
    const AttentionShape shape{.batch = 3,
                               .sequence = 1500,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 128,
                               .causal = causal,
                               .window_left = 300,
                               .window_right = causal ? -1 : 20};
    auto world = require(GpuWorld::make(1));
    auto operation = require(kernels::make_cuda_attention(shape, {1, 1}, 0));
    require_ok(operation->bind(world->group(0), {}, {}, 1));
    const auto stream = require(bench::GpuStream::create());
    auto operands = require(bench::GpuAttentionCase::make(shape, 1, 0));
    require_ok(operands.fill(0, 1, stream.get(), 2));
    require_ok(operation->enqueue(operands.arguments(), kVarlenOptions, stream.get()));
    CHECK(require(operands.check(0, 1, stream.get())).wrong == 0);
  }
}

TEST_CASE("varlen attention: lengths that cannot be are refused, and the next launches come") {
  if (!peers_or_skip(1)) return;
  VarlenRank rank(kRaggedVarlen);
  const SequenceLengths good = ragged_lengths(11);
  rank.run_checked(good, 1);
  SequenceLengths bad = good;
  bad.q[0] = -3;
  run_refused(rank, bad, "cu_seqlens_q[0] = -3, but it must be 0..0");
  bad = good;
  bad.k[4] = 178;
  run_refused(rank, bad, "cu_seqlens_k[4] = 178, but it must be 179..1030");
  bad = good;
  bad.q[11] = 1 << 30;
  run_refused(rank, bad, "cu_seqlens_q[11] = 1073741824, but it must be 746..760");
  rank.run_checked(good, 2);
  // Queued: status() tells it.
  rank.fill(bad, 3);
  require_ok(rank.enqueue());
  CHECK(rank.written_from(0, 0) == 0);
  rank.fill(good, 4);
  require_ok(rank.enqueue());
  rank.verify(good);
  CHECK(rank.operation().status().text() ==
        "attention: cu_seqlens_q[11] = 1073741824, but it must be 746..760");
  CHECK(rank.operation().refused());
  CHECK(rank.operation().status().to_string() == "OK");
}

TEST_CASE("varlen attention: a graph replayed 1,000 times with other lengths, the same bits every time") {
  if (!peers_or_skip(1)) return;
  for (const bool causal : {false, true}) {
    AttentionShape shape = kRaggedVarlen;
    shape.sequence = shape.keys = 9000;
    shape.causal = causal;
    shape.max_sequences = 30;
    VarlenRank rank(shape);
    const auto graph = require(bench::GpuGraph::capture(rank.stream(), [&] { return rank.enqueue(); }));
    for (std::uint32_t round = 0; round < 4; ++round) {
      CAPTURE(round);
      const SequenceLengths lengths = many_lengths(30, round == 3 ? 0 : 250, round);
      rank.fill(lengths, round);
      require_ok(graph.launch(rank.stream()));
      rank.verify(lengths);
      require_ok(rank.operation().status());
      const std::uint64_t first = rank.digest();
      for (int replay = 1; replay < 250; ++replay) {
        require_ok(graph.launch(rank.stream()));
        if (replay % 3 == 0) CHECK(rank.digest() == first);
      }
    }
  }
}

TEST_CASE("varlen attention: few multiprocessors compute the same bits as all of them") {
  if (!peers_or_skip(1)) return;
  AttentionShape shape = kRaggedVarlen;
  shape.causal = true;
  VarlenRank all(shape), few(shape, {.sms = 3});
  all.run_checked(ragged_lengths(11), 1);
  few.run_checked(ragged_lengths(11), 1);
  CHECK(all.digest() == few.digest());
}

}  // namespace mkernel::test

// Ring attention over sequences of different lengths on the cuda executor: ranks of one node and of several,
// also such that share a GPU; random inputs, poisoned outputs, every element against fp64, lengths that are
// refused, graphs replayed with other lengths.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/memory/error.h"
#include "kernels/ops/make.h"
#include "tests/kernels/gpu_ring_ranks.h"
#include "tests/support/attention_reference.h"
#include "tests/support/require.h"
#include "tests/support/varlen_reference.h"
#include "tools/mkbench/gpu_stream.h"
#include "tools/mkbench/gpu_varlen_case.h"

namespace mkernel::test {
namespace {

using Lengths = bench::GpuVarlenCase::Lengths;

constexpr AttentionShape kHeads{.batch = 1, .heads = 4, .kv_heads = 2, .head_dim = 64, .max_sequences = 11};
constexpr std::int64_t kRows = 780;

/// The cu_seqlens of sequences with these numbers of rows on a rank.
Lengths lengths_of(const std::vector<std::int32_t>& rows) {
  return sequence_lengths(rows, rows, kHeads.max_sequences).q;
}
Lengths ragged() {
  return ragged_ring_lengths(kHeads.max_sequences);
}

/// The operands of a rank, as GpuRingRanks calls them. Members queue on `stream`.
class RingVarlenOperands {
 public:
  static Result<std::unique_ptr<RingVarlenOperands>> make(const AttentionShape& shape, int world, int rank) {
    auto operands = bench::GpuVarlenCase::make(shape, world, rank);
    if (!operands.ok()) return operands.status();
    return std::unique_ptr<RingVarlenOperands>(
        new RingVarlenOperands(std::move(*operands), shape.heads, shape.sequence / world));
  }

  AttentionArguments arguments(int) const {
    AttentionArguments arguments = operands_.arguments();
    arguments.cu_seqlens_k = nullptr;  // also where the rank is alone: keys have the lengths of the queries
    return arguments;
  }
  Result<std::uint64_t> digest(int, CUstream_st* stream) const { return operands_.digest(stream); }

  /// New inputs for these lengths, and poison into the outputs.
  Status fill(std::uint64_t seed, const Lengths& lengths, CUstream_st* stream) {
    MK_RETURN_IF_ERROR(set_lengths(lengths, stream));
    return operands_.fill(seed, stream, 2);
  }
  /// Other lengths; the inputs stay.
  Status set_lengths(const Lengths& lengths, CUstream_st* stream) {
    return operands_.set_lengths(lengths, lengths, stream);
  }
  /// An error unless the outputs are those of a launch with these lengths, and poison behind the last
  /// sequence. Synchronous.
  Status verify(const Lengths& lengths, CUstream_st* stream) const {
    auto check = operands_.check(lengths, lengths, 1, stream);
    if (!check.ok()) return check.status();
    auto out = operands_.written_from(lengths.back(), stream);
    if (!out.ok()) return out.status();
    auto lse = lse_written_from(lengths.back(), stream);
    if (!lse.ok()) return lse.status();
    if (check->wrong + *out + *lse == 0) return {};
    return {StatusCode::kDataLoss, std::to_string(check->wrong) + " of " + std::to_string(check->elements) +
                                       " elements wrong, one at " + std::to_string(check->first_wrong) +
                                       "; behind the last sequence " + std::to_string(*out) +
                                       " elements and " + std::to_string(*lse) + " log-sum-exps written"};
  }

 private:
  RingVarlenOperands(bench::GpuVarlenCase operands, std::int64_t heads, std::int64_t rows)
      : operands_(std::move(operands)), heads_(heads), rows_(rows) {}

  /// Log-sum-exps of all heads from row `first` on that are no poison any more. Synchronous.
  Result<std::uint64_t> lse_written_from(std::int64_t first, CUstream_st* stream) const {
    const auto heads = static_cast<std::size_t>(heads_), rows = static_cast<std::size_t>(rows_ - first);
    if (rows == 0) return std::uint64_t{0};
    std::vector<float> rest(heads * rows);
    MK_RETURN_IF_ERROR(kernels::cuda_status(
        cudaMemcpy2DAsync(rest.data(), rows * sizeof(float), operands_.arguments().lse + first,
                          static_cast<std::size_t>(rows_) * sizeof(float), rows * sizeof(float), heads,
                          cudaMemcpyDeviceToHost, stream),
        "log-sum-exps"));
    MK_RETURN_IF_ERROR(kernels::cuda_status(cudaStreamSynchronize(stream), "log-sum-exps"));
    return static_cast<std::uint64_t>(
        std::count_if(rest.begin(), rest.end(), [](float value) { return !std::isnan(value); }));
  }

  bench::GpuVarlenCase operands_;
  std::int64_t heads_, rows_;
};

struct RingVarlenRank {
  bench::GpuStream stream;
  std::unique_ptr<kernels::CudaAttentionOperation> operation;
  std::unique_ptr<RingVarlenOperands> operands;
};

/// The operation on every rank, bound, with operands: `rows` of each rank. Members that name no rank are
/// called on the thread of the test case.
class GpuRingVarlen : public GpuRingRanks<RingVarlenRank> {
 public:
  GpuRingVarlen(const FabricOptions& fabric, AttentionShape shape, std::int64_t rows,
                const kernels::RingAttentionOptions& options = {})
      : GpuRingRanks(fabric) {
    shape.sequence = rows * size();
    require_ok(each([&](int rank) { return make(rank, shape, options); }));
    bind();
  }

  /// New inputs on all ranks, which are there when it returns: the first launch of a kernel loads it, and a
  /// load waits for what runs on the GPU.
  void fill(std::uint64_t seed, const Lengths& lengths) {
    require_ok(each([&](int rank) -> Status {
      MK_RETURN_IF_ERROR(at(rank).operands->fill(seed, lengths, stream(rank).get()));
      return stream(rank).synchronize();
    }));
  }
  /// What one rank is given instead.
  Status set_lengths(int rank, const Lengths& lengths) {
    MK_RETURN_IF_ERROR(at(rank).operands->set_lengths(lengths, stream(rank).get()));
    return stream(rank).synchronize();
  }
  /// One launch on all ranks; waits for it.
  void launch() {
    require_ok(each([&](int rank) -> Status {
      MK_RETURN_IF_ERROR(enqueue(rank));
      return stream(rank).synchronize();
    }));
  }
  /// What a launch with these lengths has left on a rank.
  Status verify(int rank, const Lengths& lengths) {
    return at(rank).operands->verify(lengths, stream(rank).get());
  }
  /// On all ranks, once their streams are done.
  void verify(const Lengths& lengths) {
    synchronize();
    require_ok(each([&](int rank) { return verify(rank, lengths); }));
    REQUIRE(fabric().error() == "");
  }
  void check(std::uint64_t seed, const Lengths& lengths) {
    fill(seed, lengths);
    launch();
    verify(lengths);
  }

 private:
  Status make(int rank, const AttentionShape& shape, kernels::RingAttentionOptions options) {
    MK_RETURN_IF_ERROR(
        make_rank(rank, options, [&](const auto& topology, std::uint32_t of, const auto& with) {
          return kernels::make_cuda_ring_attention(shape, topology, of, with);
        }));
    auto operands = RingVarlenOperands::make(shape, size(), rank);
    if (operands.ok()) at(rank).operands = std::move(*operands);
    return operands.status();
  }
};

}  // namespace

TEST_CASE("packed ring attention: ragged sequences small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  AttentionShape few = kHeads;
  few.heads = 2;
  few.kv_heads = 1;
  for_every_mask(few, [](const AttentionShape& shape) {
    GpuRingVarlen ring({.ranks_per_node = 2}, shape, 190);
    CAPTURE(ring.operation(0).signature());
    ring.check(1, lengths_of({6, 0, 40, 2, 134}));
  });
}

TEST_CASE("packed ring attention: one to four ranks and several nodes, launches with other lengths") {
  if (!peers_or_skip(1)) return;
  for (const FabricOptions& fabric :
       {FabricOptions{.ranks_per_node = 1}, FabricOptions{.ranks_per_node = 3},
        FabricOptions{.ranks_per_node = 4}, FabricOptions{.nodes = 2}, FabricOptions{.nodes = 3},
        FabricOptions{.nodes = 2, .ranks_per_node = 2}}) {
    for (const bool causal : {false, true}) {
      AttentionShape shape = kHeads;
      shape.causal = causal;
      shape.head_dim = 128;
      GpuRingVarlen ring(fabric, shape, kRows);
      CAPTURE(ring.operation(0).signature());
      ring.check(1, ragged());
      ring.check(2, lengths_of({780}));
      ring.check(3, lengths_of({}));
      ring.check(4, lengths_of({2, 2, 0, 4, 2}));
      if (!causal) ring.check(5, lengths_of({1, 1, 333, 0, 129}));
    }
  }
}

TEST_CASE("packed ring attention: any number of CTAs that push computes the same bits") {
  if (!peers_or_skip(1)) return;
  AttentionShape shape = kHeads;
  shape.causal = true;
  std::vector<std::uint64_t> first;
  for (const std::int32_t comm_ctas : {0, 1, 5}) {
    GpuRingVarlen ring({.ranks_per_node = 2}, shape, kRows, {.comm_ctas = comm_ctas});
    ring.check(3, ragged());
    const std::vector<std::uint64_t> digests = ring.digests();
    if (first.empty()) first = digests;
    CHECK(digests == first);
  }
}

TEST_CASE("packed ring attention: a rank with bad lengths refuses by name, and the others go on") {
  if (!peers_or_skip(1)) return;
  for (const FabricOptions& fabric :
       {FabricOptions{.ranks_per_node = 2}, FabricOptions{.nodes = 2, .ranks_per_node = 2}}) {
    AttentionShape shape = kHeads;
    shape.causal = true;
    GpuRingVarlen ring(fabric, shape, kRows);
    const Lengths good = ragged(), none = lengths_of({});
    ring.check(1, good);
    Lengths bad = good;
    bad[3] = 137;
    ring.fill(2, good);
    require_ok(ring.each([&](int rank) { return rank == 1 ? ring.set_lengths(rank, bad) : Status(); }));
    ring.launch();
    // Rank 1 writes nothing.
    require_ok(ring.each([&](int rank) { return ring.verify(rank, rank == 1 ? none : good); }));
    for (int rank = 0; rank < ring.size(); ++rank) {
      if (rank != 1) CHECK(ring.operation(rank).status().to_string() == "OK");
    }
    CHECK(ring.operation(1).status().text().find("cu_seqlens_q[3] = 137 ends a sequence of 131 rows") !=
          std::string::npos);
    CHECK(ring.operation(1).refused());
    ring.check(3, good);
  }
}

TEST_CASE("packed ring attention: graphs replayed with other lengths, the same bits every time") {
  if (!peers_or_skip(1)) return;
  AttentionShape shape = kHeads;
  shape.causal = true;
  GpuRingVarlen ring({.ranks_per_node = 2}, shape, kRows);
  ring.check(1, ragged());  // loads the kernel
  const std::vector<bench::GpuGraph> graphs = ring.capture();
  for (const Lengths& lengths : {lengths_of({780}), lengths_of({2, 300, 0, 130}), lengths_of({})}) {
    ring.fill(2, lengths);
    std::vector<std::uint64_t> first;
    for (int round = 0; round < 4; ++round) {
      ring.replay(graphs, 85);
      ring.verify(lengths);
      const std::vector<std::uint64_t> digests = ring.digests();
      if (first.empty()) first = digests;
      CHECK(digests == first);
    }
  }
}

}  // namespace mkernel::test

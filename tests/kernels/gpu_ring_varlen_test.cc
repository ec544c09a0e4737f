// Ring attention over sequences of different lengths on the cuda executor: ranks of one node and of several,
// also such that share a GPU; random inputs, poisoned outputs, every element against fp64, lengths that are
// refused, graphs replayed with other lengths.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/launch/operation.h"
#include "kernels/cuda/memory/error.h"
#include "kernels/ops/make.h"
#include "tests/support/gpu_world.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/support/varlen_reference.h"
#include "tools/mkbench/gpu_matrix.h"
#include "tools/mkbench/gpu_stream.h"

namespace mkernel::test {
namespace {

using namespace std::chrono_literals;
using Lengths = std::vector<std::int32_t>;
using Elements = std::vector<std::uint16_t>;

constexpr ExecutorOptions kOptions{.deadline = 10s};
constexpr std::int64_t kMostSequences = 11;

/// An operand in GPU memory and what it is to hold.
template <class Value>
struct Operand {
  bench::GpuBuffer memory{};

  Status allocate(std::size_t values) {
    auto made = bench::GpuBuffer::allocate(values * sizeof(Value));
    if (made.ok()) memory = std::move(*made);
    return made.status();
  }
  Status put(const std::vector<Value>& values, CUstream_st* stream) {
    return copy(memory.get(), values.data(), values.size(), stream);
  }
  Status get(std::vector<Value>& values, CUstream_st* stream) const {
    values.resize(memory.bytes() / sizeof(Value));
    MK_RETURN_IF_ERROR(copy(values.data(), memory.get(), values.size(), stream));
    return kernels::cuda_status(cudaStreamSynchronize(stream), "outputs of ring attention");
  }

 private:
  static Status copy(void* to, const void* from, std::size_t values, CUstream_st* stream) {
    return kernels::cuda_status(cudaMemcpyAsync(to, from, values * sizeof(Value), cudaMemcpyDefault, stream),
                                "operands of ring attention");
  }
};

/// The operation on every rank, bound, with operands: `rows` of each.
class GpuPackedRing {
 public:
  GpuPackedRing(const FabricOptions& fabric, AttentionShape shape, std::int64_t rows,
                const kernels::RingAttentionOptions& options = {})
      : world_(require(GpuWorld::make(fabric))), ranks_(static_cast<std::size_t>(world_->size())) {
    shape.batch = 1;
    shape.sequence = rows * world_->size();
    shape.max_sequences = kMostSequences;
    shape_ = shape;
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
  kernels::CudaAttentionOperation& operation(int rank) { return *at(rank).operation; }
  const bench::GpuStream& stream(int rank) { return at(rank).stream; }

  /// New inputs for these lengths on every rank, and poison into the outputs.
  void fill(std::uint64_t seed, const Lengths& lengths) {
    lengths_ = lengths;
    whole_ = random_attention(shape_, seed, 2);
    require_ok(each([&](int rank) { return fill_rank(rank); }));
  }
  /// What one rank is given instead.
  void set_lengths(int rank, const Lengths& lengths) {
    require_ok(each([&](int r) -> Status {
      if (r != rank) return {};
      MK_RETURN_IF_ERROR(at(r).cu_seqlens.put(lengths, stream(r).get()));
      return stream(r).synchronize();
    }));
  }
  Status enqueue(int rank) {
    Rank& of = at(rank);
    const AttentionArguments arguments{of.q.memory.get(),
                                       of.k.memory.get(),
                                       of.v.memory.get(),
                                       of.out.memory.get(),
                                       static_cast<float*>(of.lse.memory.get()),
                                       static_cast<const std::int32_t*>(of.cu_seqlens.memory.get())};
    return operation(rank).enqueue(arguments, kOptions, stream(rank).get());
  }
  void launch() {
    require_ok(each([&](int rank) -> Status {
      MK_RETURN_IF_ERROR(enqueue(rank));
      return stream(rank).synchronize();
    }));
  }
  /// Elements of rank `rank` that are not as after a launch with `lengths`.
  std::size_t wrong(int rank, const Lengths& lengths) {
    std::vector<float> lse;
    require_ok(each([&](int r) -> Status {
      if (r != rank) return {};
      MK_RETURN_IF_ERROR(at(r).out.get(out_, stream(r).get()));
      return at(r).lse.get(lse, stream(r).get());
    }));
    return wrong_ring_varlen(shape_, lengths, whole_, size(), rank, out_, lse, Weights::kRounded);
  }
  const Elements& out() const { return out_; }  ///< that wrong() has looked at last
  void verify() {
    for (int rank = 0; rank < size(); ++rank) {
      CHECK(operation(rank).status().to_string() == "OK");
      const std::size_t elements = wrong(rank, lengths_);
      CHECK_MESSAGE(elements == 0, "rank ", rank, ": ", elements, " elements wrong");
    }
    CHECK(world_->fabric().error() == "");
  }
  void check(std::uint64_t seed, const Lengths& lengths) {
    fill(seed, lengths);
    launch();
    verify();
  }

 private:
  struct Rank {
    bench::GpuStream stream;
    std::unique_ptr<kernels::CudaAttentionOperation> operation;
    Operand<std::uint16_t> q, k, v, out;
    Operand<float> lse;
    Operand<std::int32_t> cu_seqlens;
  };
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  /// Values of a rank in a tensor with so many heads.
  std::size_t values(std::int64_t heads) const {
    return static_cast<std::size_t>(shape_.sequence / size() * heads * shape_.head_dim);
  }

  Status make_rank(int rank, kernels::RingAttentionOptions options) {
    if (options.sms == 0) options.sms = world_->sms();
    Rank& of = at(rank);
    auto stream = bench::GpuStream::create();
    if (!stream.ok()) return stream.status();
    of.stream = std::move(*stream);
    auto made = kernels::make_cuda_ring_attention(shape_, world_->topology(),
                                                  static_cast<std::uint32_t>(rank), options);
    if (!made.ok()) return made.status();
    of.operation = std::move(*made);
    of.operation->use_rings(world_->rings(rank));
    MK_RETURN_IF_ERROR(of.q.allocate(values(shape_.heads)));
    MK_RETURN_IF_ERROR(of.k.allocate(values(shape_.kv_heads)));
    MK_RETURN_IF_ERROR(of.v.allocate(values(shape_.kv_heads)));
    MK_RETURN_IF_ERROR(of.out.allocate(values(shape_.heads)));
    MK_RETURN_IF_ERROR(of.lse.allocate(values(shape_.heads) / static_cast<std::size_t>(shape_.head_dim)));
    return of.cu_seqlens.allocate(static_cast<std::size_t>(kMostSequences + 1));
  }

  Status fill_rank(int rank) {
    Rank& of = at(rank);
    CUstream_st* stream = of.stream.get();
    const auto part = [&](const Elements& whole, std::int64_t heads) {
      return packed_rows_of_rank(shape_, lengths_, whole, heads, size(), rank);
    };
    MK_RETURN_IF_ERROR(of.q.put(part(whole_.q, shape_.heads), stream));
    MK_RETURN_IF_ERROR(of.k.put(part(whole_.k, shape_.kv_heads), stream));
    MK_RETURN_IF_ERROR(of.v.put(part(whole_.v, shape_.kv_heads), stream));
    MK_RETURN_IF_ERROR(of.out.put(Elements(values(shape_.heads), kPoison), stream));
    AttentionShape own = shape_;
    own.sequence /= size();
    MK_RETURN_IF_ERROR(of.lse.put(poisoned_lse(own), stream));
    MK_RETURN_IF_ERROR(of.cu_seqlens.put(lengths_, stream));
    return of.stream.synchronize();
  }

  std::unique_ptr<GpuWorld> world_;
  AttentionShape shape_;
  std::vector<Rank> ranks_;
  AttentionTensors whole_;
  Lengths lengths_;
  Elements out_;
};

constexpr AttentionShape kHeads{.batch = 1, .heads = 4, .kv_heads = 2, .head_dim = 64};
constexpr std::int64_t kRows = 780;

}  // namespace

TEST_CASE("packed ring attention: ragged sequences small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  for_every_attention(kHeads, [](const AttentionShape& shape) {
    GpuPackedRing ring({.ranks_per_node = 2}, shape, 190);
    CAPTURE(ring.operation(0).signature());
    ring.check(1, sequence_lengths({6, 0, 40, 2, 134}, {}, kMostSequences).q);
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
      GpuPackedRing ring(fabric, shape, kRows);
      CAPTURE(ring.operation(0).signature());
      ring.check(1, ragged_ring_lengths(kMostSequences));
      ring.check(2, sequence_lengths({780}, {}, kMostSequences).q);
      ring.check(3, sequence_lengths({}, {}, kMostSequences).q);
      ring.check(4, sequence_lengths({2, 2, 0, 4, 2}, {}, kMostSequences).q);
      if (!causal) ring.check(5, sequence_lengths({1, 1, 333, 0, 129}, {}, kMostSequences).q);
    }
  }
}

TEST_CASE("packed ring attention: any number of CTAs that push computes the same bits") {
  if (!peers_or_skip(1)) return;
  AttentionShape shape = kHeads;
  shape.causal = true;
  std::vector<Elements> first;
  for (const std::int32_t comm_ctas : {0, 1, 5}) {
    GpuPackedRing ring({.ranks_per_node = 2}, shape, kRows, {.comm_ctas = comm_ctas});
    ring.fill(3, ragged_ring_lengths(kMostSequences));
    ring.launch();
    std::vector<Elements> found;
    for (int rank = 0; rank < ring.size(); ++rank) {
      CHECK(ring.wrong(rank, ragged_ring_lengths(kMostSequences)) == 0);
      found.push_back(ring.out());
    }
    if (first.empty()) first = found;
    CHECK(found == first);
  }
}

TEST_CASE("packed ring attention: a rank with bad lengths refuses by name, and the others go on") {
  if (!peers_or_skip(1)) return;
  for (const FabricOptions& fabric :
       {FabricOptions{.ranks_per_node = 2}, FabricOptions{.nodes = 2, .ranks_per_node = 2}}) {
    AttentionShape shape = kHeads;
    shape.causal = true;
    GpuPackedRing ring(fabric, shape, kRows);
    const Lengths good = ragged_ring_lengths(kMostSequences);
    ring.check(1, good);
    Lengths bad = good;
    bad[3] = 137;
    ring.fill(2, good);
    ring.set_lengths(1, bad);
    ring.launch();
    CHECK(ring.wrong(0, good) == 0);
    CHECK(ring.wrong(1, sequence_lengths({}, {}, kMostSequences).q) == 0);  // nothing is written
    CHECK(ring.operation(0).status().to_string() == "OK");
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
  GpuPackedRing ring({.ranks_per_node = 2}, shape, kRows);
  ring.check(1, ragged_ring_lengths(kMostSequences));  // loads the kernel
  std::vector<bench::GpuGraph> graphs(static_cast<std::size_t>(ring.size()));
  require_ok(ring.each([&](int rank) -> Status {
    auto graph = bench::GpuGraph::capture(ring.stream(rank), [&] { return ring.enqueue(rank); });
    if (graph.ok()) graphs[static_cast<std::size_t>(rank)] = std::move(*graph);
    return graph.status();
  }));
  for (const Lengths& rows : {Lengths{780}, Lengths{2, 300, 0, 130}, Lengths{}}) {
    const Lengths lengths = sequence_lengths(rows, {}, kMostSequences).q;
    ring.fill(2, lengths);
    std::vector<Elements> first;
    for (int round = 0; round < 4; ++round) {
      require_ok(ring.each([&](int rank) -> Status {
        for (int replay = 0; replay < 85; ++replay)
          MK_RETURN_IF_ERROR(graphs[static_cast<std::size_t>(rank)].launch(ring.stream(rank)));
        return ring.stream(rank).synchronize();
      }));
      std::vector<Elements> found;
      for (int rank = 0; rank < ring.size(); ++rank) {
        CHECK(ring.wrong(rank, lengths) == 0);
        found.push_back(ring.out());
      }
      if (first.empty()) first = found;
      CHECK(found == first);
    }
    ring.verify();
  }
}

}  // namespace mkernel::test

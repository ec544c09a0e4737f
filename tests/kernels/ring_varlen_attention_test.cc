// Ring attention over sequences of different lengths on the cpu executor: every element against fp64 on one
// and several nodes, the same bits under every timing, and lengths that are refused.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/ops/make.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"
#include "tests/support/fake_fabric.h"
#include "tests/support/random_tensor.h"
#include "tests/support/require.h"
#include "tests/support/varlen_reference.h"

namespace mkernel::test {
namespace {

using kernels::Topology;
using Tensor = std::vector<std::uint16_t>;
using Lengths = std::vector<std::int32_t>;

/// `rows` of every rank, at most 11 sequences.
AttentionShape packed_shape(const Topology& world, std::int64_t rows, bool causal) {
  return {.batch = 1,
          .sequence = rows * world.world(),
          .heads = 2,
          .kv_heads = 1,
          .head_dim = 16,
          .causal = causal,
          .dtype = causal ? DataType::kF16 : DataType::kBf16,
          .max_sequences = 11};
}

/// The operation on every rank of a fabric.
class PackedRing {
 public:
  PackedRing(const AttentionShape& shape, const Topology& world, std::uint64_t seed = 3)
      : shape_(shape),
        fabric_({.nodes = world.nodes(), .ranks_per_node = world.ranks_per_node(), .seed = seed}) {
    for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank)
      operations_.push_back(
          require(kernels::make_attention(OpKind::kRingAttention, shape, fabric_.group(rank))));
    const Requirements needs = operations_[0]->requirements();
    workspace_ = fabric_.symmetric(needs.workspace_bytes);
    lent_ = fabric_.symmetric(kernels::lent_workspace_bytes(needs.lent_bytes));
    for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank)
      require_ok(operations_[rank]->bind(fabric_.group(rank), workspace_[rank], lent_[rank], 0));
  }

  AttentionOperation& operation(std::uint32_t rank) { return *operations_[rank]; }

  /// One launch with new inputs, made for the lengths of rank 0: each rank is given `lengths` of its own. The
  /// statuses by rank.
  std::vector<Status> launch(std::uint64_t seed, const std::vector<Lengths>& lengths) {
    whole_ = random_attention(shape_, seed, 2);
    out_.assign(fabric_.world(), {});
    lse_.assign(fabric_.world(), {});
    std::vector<Tensor> q(fabric_.world()), k(q), v(q);
    for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank) {
      q[rank] = part(lengths[0], whole_.q, shape_.heads, rank);
      k[rank] = part(lengths[0], whole_.k, shape_.kv_heads, rank);
      v[rank] = part(lengths[0], whole_.v, shape_.kv_heads, rank);
      out_[rank].assign(q[rank].size(), kPoison);
      lse_[rank].assign(q[rank].size() / static_cast<std::size_t>(shape_.head_dim),
                        std::numeric_limits<float>::quiet_NaN());
    }
    return run_ranks(fabric_.world(), [&](std::uint32_t rank) {
      return operations_[rank]->run(
          {q[rank].data(), k[rank].data(), v[rank].data(), out_[rank].data(), lse_[rank].data(),
           shape_.max_sequences > 0 ? lengths[rank].data() : nullptr},
          {.compute_threads = 1 + static_cast<int>(rank % 2)});
    });
  }
  const std::vector<Tensor>& check(std::uint64_t seed, const Lengths& lengths) {
    for (const Status& status : launch(seed, std::vector<Lengths>(fabric_.world(), lengths)))
      CHECK_MESSAGE(status.ok(), status.to_string());
    for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank) {
      CHECK(wrong(lengths, rank) == 0);
      CHECK_FALSE(operations_[rank]->refused());
    }
    CHECK(fabric_.error() == "");
    return out_;
  }
  std::size_t wrong(const Lengths& lengths, std::uint32_t rank) const {
    return wrong_ring_varlen(shape_, lengths, whole_, fabric_.world(), rank, out_[rank], lse_[rank],
                             Weights::kFp32);
  }

 private:
  Tensor part(const Lengths& lengths, const Tensor& whole, std::int64_t heads, std::uint32_t rank) const {
    return packed_rows_of_rank(shape_, lengths, whole, heads, fabric_.world(), rank);
  }

  AttentionShape shape_;
  FakeFabric fabric_;
  std::vector<kernels::SymmetricView> workspace_, lent_;
  std::vector<std::unique_ptr<AttentionOperation>> operations_;
  AttentionTensors whole_;
  std::vector<Tensor> out_;
  std::vector<std::vector<float>> lse_;  ///< of the last launch, by rank
};

}  // namespace

TEST_CASE("ring attention, packed: ragged sequences on every world, launches with other lengths") {
  for (const Topology& world : {Topology{1, 1}, {1, 2}, {1, 3}, {2, 1}, {2, 2}, {3, 2}}) {
    for (const bool causal : {false, true}) {
      CAPTURE(world.nodes());
      CAPTURE(world.ranks_per_node());
      CAPTURE(causal);
      // Sequences of several tiles on two ranks, shorter ones on more.
      const bool few = world.world() <= 2;
      PackedRing ring(packed_shape(world, few ? 780 : 190, causal), world);
      ring.check(1, few ? ragged_ring_lengths(11) : sequence_lengths({6, 0, 40, 2, 134}, {}, 11).q);
      ring.check(2, sequence_lengths({188}, {}, 11).q);
      ring.check(3, sequence_lengths({}, {}, 11).q);
      ring.check(4, sequence_lengths({2, 2, 0, 4, 2}, {}, 11).q);
    }
  }
}

TEST_CASE("ring attention, packed: without a mask lengths may be odd") {
  PackedRing ring(packed_shape({2, 2}, 200, false), {2, 2});
  ring.check(1, sequence_lengths({1, 1, 0, 145, 33}, {}, 11).q);
}

TEST_CASE("ring attention, packed: heads of several chunks, cut within sequences") {
  // Of 1 MiB: 128 rows.
  AttentionShape shape = packed_shape({2, 1}, 150, true);
  shape.heads = shape.kv_heads = 1;
  shape.head_dim = 4096;
  PackedRing(shape, {2, 1}).check(1, sequence_lengths({120, 2, 20, 0, 8}, {}, 11).q);
}

TEST_CASE("ring attention, packed: the same bits whatever the fabric does") {
  const AttentionShape shape = packed_shape({3, 2}, 200, true);
  const Lengths lengths = sequence_lengths({40, 0, 130, 12}, {}, 11).q;
  PackedRing first(shape, {3, 2}, 0);
  const auto wanted = first.check(7, lengths);
  for (const std::uint64_t seed : {1, 2, 3})
    CHECK(PackedRing(shape, {3, 2}, seed).check(7, lengths) == wanted);
}

TEST_CASE("ring attention, packed: one sequence gives the bits of ring attention over it") {
  AttentionShape shape = packed_shape({1, 3}, 120, true);
  const Lengths lengths = sequence_lengths({120}, {}, 11).q;
  PackedRing packed(shape, {1, 3});
  const auto wanted = packed.check(5, lengths);
  shape.max_sequences = 0;
  CHECK(PackedRing(shape, {1, 3}).check(5, lengths) == wanted);
}

TEST_CASE("ring attention, packed: a rank whose lengths are bad refuses by name, and the others go on") {
  const Lengths good = ragged_ring_lengths(11);
  Lengths odd = good, beyond = good;
  odd[3] = 137;
  beyond[11] = 1000;
  PackedRing ring(packed_shape({2, 2}, 780, true), {2, 2});
  const auto statuses = ring.launch(1, {good, odd, good, beyond});
  CHECK(
      statuses[1].to_string() ==
      "INVALID_ARGUMENT: ring_attention: cu_seqlens_q[3] = 137 ends a sequence of 131 rows of each rank, but "
      "it must be an even number: a causal sequence has two parts of the same size on every rank");
  CHECK(statuses[3].text() == "ring_attention: cu_seqlens_q[11] = 1000, but it must be 750..780");
  for (const std::uint32_t rank : {0, 2}) {
    CHECK(statuses[rank].ok());
    CHECK(ring.wrong(good, rank) == 0);
  }
  for (const std::uint32_t rank : {1, 3}) {
    CHECK(ring.operation(rank).refused());
    CHECK(ring.wrong(sequence_lengths({}, {}, 11).q, rank) == 0);  // nothing is written
  }
  ring.check(2, good);
}

TEST_CASE(
    "ring attention, packed: ranks with other lengths than the others get other results, and no error") {
  const Lengths good = ragged_ring_lengths(11), other = sequence_lengths({400, 380}, {}, 11).q;
  PackedRing ring(packed_shape({1, 2}, 780, true), {1, 2});
  for (const Status& status : ring.launch(1, {good, other})) CHECK(status.ok());
  CHECK(ring.wrong(good, 0) == 0);
  CHECK(ring.wrong(good, 1) > 0);
  ring.check(2, good);
}

TEST_CASE("ring attention, packed: shapes and operands that no launch can take are refused by name") {
  FakeFabric fabric({.nodes = 1, .ranks_per_node = 2});
  const auto refusal = [&](AttentionShape shape, OpKind kind = OpKind::kRingAttention) {
    return kernels::make_attention(kind, shape, fabric.group(0)).status().text();
  };
  AttentionShape shape = packed_shape({1, 2}, 10, true);
  shape.sequence = 21;
  CHECK(refusal(shape) ==
        "ring_attention: sequence = 21, must be a multiple of the 2 ranks with max_sequences, for every rank "
        "holds equally many rows");
  shape = packed_shape({1, 2}, 10, true);
  shape.batch = 2;
  CHECK(refusal(shape) == "ring_attention: batch = 2, but it must be 1 with max_sequences");
  shape = packed_shape({1, 2}, 10, true);
  shape.max_sequences = 1025;
  CHECK(refusal(shape) == "ring_attention: max_sequences = 1025, but it must be 0..1024");
  shape = packed_shape({1, 2}, 10, true);
  shape.window_left = 5;
  CHECK(refusal(shape) == "ring_attention: window_left = 5, but it must be -1");

  PackedRing ring(packed_shape({1, 1}, 10, true), {1, 1});
  const Tensor data(10 * 2 * 16);
  Tensor out(data.size());
  const Lengths lengths(12);
  AttentionArguments arguments{data.data(), data.data(), data.data(), out.data()};
  const auto told = [&] { return ring.operation(0).run(arguments, {}).text(); };
  CHECK(told() == "ring_attention: cu_seqlens_q is null, but max_sequences = 11");
  const Lengths others(12);
  arguments.cu_seqlens_q = lengths.data();
  arguments.cu_seqlens_k = others.data();
  CHECK(told() == "ring_attention: cu_seqlens_k must be null or cu_seqlens_q: keys have the same lengths");
  arguments.cu_seqlens_k = lengths.data();
  CHECK(told().empty());
  PackedRing plain({.batch = 1, .sequence = 10, .heads = 2, .kv_heads = 1, .head_dim = 16}, {1, 1});
  CHECK(plain.operation(0).run(arguments, {}).text() ==
        "ring_attention: cu_seqlens_q must be null, because max_sequences = 0");
}

}  // namespace mkernel::test

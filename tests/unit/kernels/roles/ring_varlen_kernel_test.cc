// The whole kernel of ring attention over sequences of different lengths on the host: tiles that end with
// what a rank holds of their sequence, launches with other lengths, and lengths that are refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/kernels/roles/ring_attention_ranks.h"

namespace mkernel::test {
namespace {

using PackedRanks = RingRanksOf<true>;
using Lengths = std::vector<std::int32_t>;

/// `rows` of every rank, up to 7 sequences.
AttentionShape packed_shape(const Topology& topology, std::int64_t rows, bool causal,
                            std::int64_t head_dim = 64) {
  return {.batch = 1,
          .sequence = rows * topology.world(),
          .heads = 2,
          .kv_heads = 1,
          .head_dim = head_dim,
          .causal = causal,
          .max_sequences = 7};
}
Lengths lengths_of(const Lengths& rows, std::int64_t most = 7) {
  return sequence_lengths(rows, {}, most).q;
}

TEST_CASE("packed ring kernel: every size of heads, mask and type, with tails and heads that share keys") {
  const Topology topology{1, 2};
  for_every_attention(packed_shape(topology, 420, true), [&](const AttentionShape& shape) {
    CAPTURE(shape.head_dim);
    CAPTURE(shape.causal);
    PackedRanks ranks(shape, topology);
    ranks.set_lengths(lengths_of({6, 0, 130, 2, 260}));
    ranks.check(1);
  });
}

TEST_CASE("packed ring kernel: tiles of keys of 160, of long sequences without a mask") {
  AttentionShape shape = packed_shape({1, 2}, 320, false, 128);
  shape.max_sequences = 1;
  PackedRanks ranks(shape, {1, 2});
  for (const std::int32_t rows : {320, 161, 33}) {
    ranks.set_lengths(lengths_of({rows}, 1));
    ranks.check(static_cast<std::uint64_t>(rows));
  }
}

TEST_CASE("packed ring kernel: one to four ranks, launches behind each other with other lengths") {
  for (const std::uint32_t world : {1U, 2U, 3U, 4U}) {
    for (const bool causal : {false, true}) {
      CAPTURE(world);
      CAPTURE(causal);
      const Topology topology{1, world};
      PackedRanks ranks(packed_shape(topology, 150, causal), topology);
      ranks.set_lengths(lengths_of({4, 40, 0, 2, 94, 0, 2}));
      ranks.check(1);
      ranks.set_lengths(lengths_of({}));
      ranks.check(2);
      ranks.set_lengths(lengths_of({0, 150}));
      ranks.check(3, false);
      ranks.set_lengths(lengths_of({2, 2, 2, 2, 2, 2, 2}));
      ranks.check(4);
    }
  }
}

TEST_CASE("packed ring kernel: odd lengths without a mask, on one node and on several") {
  for (const Topology& topology : {Topology{1, 3}, Topology{2, 2}}) {
    PackedRanks ranks(packed_shape(topology, 70, false), topology);
    ranks.set_lengths(lengths_of({1, 1, 33, 0, 29, 1}));
    ranks.check(1);
  }
}

TEST_CASE("packed ring kernel: several nodes, chunks that end within sequences, several heads of keys") {
  for (const Topology& topology : {Topology{2, 1}, Topology{3, 1}, Topology{2, 2}}) {
    for (const bool causal : {false, true}) {
      CAPTURE(topology.nodes());
      CAPTURE(causal);
      AttentionShape shape = packed_shape(topology, 150, causal);
      shape.heads = 4;
      shape.kv_heads = 2;
      PackedRanks ranks(shape, topology, 4, 2, 20);
      constexpr std::uint64_t kLaunches = 2;
      for (std::uint64_t launch = 0; launch < kLaunches; ++launch) {
        ranks.set_lengths(lengths_of(launch == 0 ? Lengths{36, 0, 2, 84, 10} : Lengths{128, 4, 0, 2}));
        ranks.check(launch);
      }
      for (std::size_t rank = 0; rank < topology.world(); ++rank)
        CHECK(ranks.delivered(rank) == kLaunches * ranks.wire_bytes(rank));
    }
  }
}

TEST_CASE("packed ring kernel: the same bits however many CTAs push and compute") {
  const AttentionShape shape = packed_shape({1, 2}, 400, true);
  PackedRanks few(shape, {1, 2}, 2, 1), many(shape, {1, 2}, 7, 3), one(shape, {1, 2}, 1, 0);
  for (PackedRanks* ranks : {&few, &many, &one}) {
    ranks->set_lengths(lengths_of({260, 10, 0, 120}));
    ranks->check(3);
  }
  for (const std::size_t rank : {0, 1}) {
    CHECK(few.out(rank) == many.out(rank));
    CHECK(few.out(rank) == one.out(rank));
  }
}

/// Nobody has written them.
bool untouched(const std::vector<std::uint16_t>& out) {
  return std::all_of(out.begin(), out.end(), [](std::uint16_t bits) { return bits == kPoison; });
}

TEST_CASE("packed ring kernel: a rank with bad lengths refuses by name, and passes its keys on") {
  const Lengths good = lengths_of({4, 40, 0, 2, 94});
  Lengths odd = good, beyond = good;
  odd[2] = 45;
  beyond[7] = 151;
  for (const Topology& topology : {Topology{1, 3}, Topology{3, 1}}) {
    for (const std::int32_t ctas : {1, 4}) {
      if (ctas == 1 && topology.nodes() > 1) continue;  // CTA 0 does not compute there
      CAPTURE(topology.nodes());
      CAPTURE(ctas);
      PackedRanks ranks(packed_shape(topology, 150, true), topology, ctas, ctas / 2);
      ranks.set_lengths(good);
      ranks.set_lengths(1, odd);
      ranks.set_lengths(2, beyond);
      ranks.launch(1);
      CHECK(ranks.refusal(0).empty());
      CHECK(ranks.wrong(0) == 0);
      CHECK(ranks.refusal(1) ==
            "ring_attention: cu_seqlens_q[2] = 45 ends a sequence of 41 rows of each rank, but it must be an "
            "even number: a causal sequence has two parts of the same size on every rank");
      CHECK(ranks.refusal(2) == "ring_attention: cu_seqlens_q[7] = 151, but it must be 140..150");
      for (const std::size_t rank : {1, 2}) {
        CHECK(ranks.control(rank).failed == 0);
        CHECK(untouched(ranks.out(rank)));
      }
      ranks.set_lengths(good);
      for (std::uint64_t launch = 2; launch < 4; ++launch) ranks.check(launch);
    }
  }
}

TEST_CASE("packed ring kernel: ranks with other lengths than the others neither wait for ever nor fail") {
  PackedRanks ranks(packed_shape({1, 2}, 150, true), {1, 2});
  ranks.set_lengths(lengths_of({100, 40}));
  ranks.set_lengths(1, lengths_of({2, 2, 2, 144}));
  ranks.launch(1);
  CHECK(ranks.wrong(0) == 0);
  CHECK(ranks.wrong(1) > 0);
}

TEST_CASE("packed ring kernel: what is queued behind a failed launch does nothing") {
  PackedRanks ranks(packed_shape({1, 2}, 40, false), {1, 2});
  ranks.set_lengths(lengths_of({20, 19}));
  ranks.check(1);
  ranks.lent(0).stopped = 1;  // a launch of rank 0 has failed
  ranks.set_deadline(100 * kHostRoundNs);
  ranks.launch(2);
  CHECK(untouched(ranks.out(0)));
  CHECK(ranks.control(0).failed == 0);
  REQUIRE(ranks.control(1).failed != 0);  // it waits for keys that do not come, and says whose
  CHECK(ranks.control(1).site.peer == 0);
}

TEST_CASE("packed ring kernel: of two launches at a time one fails and says so") {
  PackedRanks rank(packed_shape({1, 1}, 150, true), {1, 1});
  rank.set_lengths(lengths_of({150}));
  rank.check(1);
  rank.set_lengths(lengths_of({140}));
  rank.check_two([&] { rank.launch(2); });
}

}  // namespace
}  // namespace mkernel::test

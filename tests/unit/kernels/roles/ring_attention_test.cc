// The whole kernel of ring attention on the host: ranks push keys and values to each other, put them to other
// nodes and pass on what comes from there; tiles of queries sweep what is here and what comes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/kernels/roles/ring_attention_ranks.h"

namespace mkernel::test {
namespace {

using RingRanks = RingRanksOf<false>;

TEST_CASE("ring attention kernel: every size of heads, mask and type, with tails and heads that share keys") {
  const AttentionShape of{.batch = 1, .sequence = 2 * 2 * 150 + 3, .heads = 2, .kv_heads = 1};
  for_every_attention(of, [](const AttentionShape& shape) {
    CAPTURE(shape.head_dim);
    CAPTURE(shape.causal);
    RingRanks(shape, {1, 2}).check(1);
  });
}

TEST_CASE(
    "ring attention kernel: one, two, three and four ranks, launches behind each other with new inputs") {
  for (const std::uint32_t world : {1U, 2U, 3U, 4U}) {
    for (const bool causal : {false, true}) {
      CAPTURE(world);
      CAPTURE(causal);
      RingRanks ranks(
          {.batch = 2, .sequence = 301, .heads = 1, .kv_heads = 1, .head_dim = 64, .causal = causal},
          {1, world});
      for (std::uint64_t launch = 0; launch < 3; ++launch) ranks.check(launch, launch != 1);
    }
  }
}

TEST_CASE(
    "ring attention kernel: heads of several batch entries, each in several chunks, shared by queries") {
  for (const Topology& topology : {Topology{1, 3}, Topology{2, 2}}) {
    for (const bool causal : {false, true}) {
      CAPTURE(topology.nodes());
      CAPTURE(causal);
      RingRanks ranks(
          {.batch = 2, .sequence = 150, .heads = 4, .kv_heads = 2, .head_dim = 128, .causal = causal},
          topology, 4, 2, 16);
      for (std::uint64_t launch = 0; launch < 2; ++launch) ranks.check(launch);
    }
  }
}

TEST_CASE("ring attention kernel: sequences shorter than the ranks") {
  for (const std::int64_t sequence : {1, 3, 9}) {
    for (const bool causal : {false, true}) {
      CAPTURE(sequence);
      CAPTURE(causal);
      RingRanks ranks(
          {.batch = 2, .sequence = sequence, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = causal},
          {1, 4}, 2, 1);
      for (std::uint64_t launch = 0; launch < 2; ++launch) ranks.check(launch);
    }
  }
}

TEST_CASE("ring attention kernel: parts that end within tiles, beside those of the next part and sequence") {
  for (const std::int64_t part : {127, 128, 129, 191}) {
    CAPTURE(part);
    RingRanks ranks(
        {.batch = 2, .sequence = 4 * part + 2, .heads = 1, .kv_heads = 1, .head_dim = 64, .causal = true},
        {1, 2}, 3, 1);
    ranks.check(7);
  }
}

TEST_CASE("ring attention kernel: the same bits however many CTAs push and compute") {
  const AttentionShape shape{
      .batch = 1, .sequence = 700, .heads = 4, .kv_heads = 2, .head_dim = 64, .causal = true};
  RingRanks few(shape, {1, 2}, 2, 1), many(shape, {1, 2}, 7, 3);
  few.check(3);
  many.check(3);
  for (const std::size_t rank : {0, 1}) CHECK(few.out(rank) == many.out(rank));
}

TEST_CASE("ring attention kernel: one CTA a rank pushes, computes, polls and ends the launch") {
  for (const std::uint32_t world : {1U, 3U}) {
    for (const bool causal : {false, true}) {
      CAPTURE(world);
      CAPTURE(causal);
      RingRanks ranks(
          {.batch = 1, .sequence = 301, .heads = 2, .kv_heads = 1, .head_dim = 128, .causal = causal},
          {1, world}, 1, 0);
      for (std::uint64_t launch = 0; launch < 3; ++launch) ranks.check(launch);
    }
  }
}

/// Two and three nodes, of one rank and of several; three of two ranks have a case of their own.
const std::vector<Topology> kSeveralNodes{{2, 1}, {3, 1}, {2, 2}};

TEST_CASE("ring attention kernel: several nodes, launches behind each other with new inputs") {
  for (const Topology& topology : kSeveralNodes) {
    for (const bool causal : {false, true}) {
      const std::string what = std::to_string(topology.nodes()) + " x " +
                               std::to_string(topology.ranks_per_node()) + (causal ? ", causal" : "");
      CAPTURE(what);
      RingRanks ranks(
          {.batch = 1, .sequence = 301, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = causal},
          topology, 4, 2, 20);
      constexpr std::uint64_t kLaunches = 3;
      for (std::uint64_t launch = 0; launch < kLaunches; ++launch) ranks.check(launch, launch != 1);
      for (std::size_t rank = 0; rank < topology.world(); ++rank)
        CHECK(ranks.delivered(rank) == kLaunches * ranks.wire_bytes(rank));
    }
  }
}

TEST_CASE("ring attention kernel: several nodes, every size of heads, mask and type") {
  const AttentionShape of{.batch = 1, .sequence = 2 * 2 * 150 + 3, .heads = 2, .kv_heads = 2};
  for_every_attention(of, [](const AttentionShape& shape) {
    CAPTURE(shape.head_dim);
    CAPTURE(shape.causal);
    RingRanks(shape, {2, 2}, 4, 2, 100).check(1);
  });
}

TEST_CASE("ring attention kernel: several nodes, sequences shorter than the ranks") {
  for (const std::int64_t sequence : {1, 3, 9}) {
    for (const bool causal : {false, true}) {
      CAPTURE(sequence);
      CAPTURE(causal);
      RingRanks ranks(
          {.batch = 2, .sequence = sequence, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = causal},
          {3, 2}, 2, 1);
      for (std::uint64_t launch = 0; launch < 2; ++launch) ranks.check(launch);
    }
  }
}

TEST_CASE("ring attention kernel: what is queued behind a failed launch does nothing") {
  RingRanks ranks({.batch = 1, .sequence = 40, .heads = 1, .kv_heads = 1, .head_dim = 64}, {1, 2});
  ranks.check(1);
  ranks.lent(0).stopped = 1;  // a launch of rank 0 has failed
  ranks.set_deadline(100 * kHostRoundNs);
  ranks.launch(2);
  CHECK(std::all_of(ranks.out(0).begin(), ranks.out(0).end(),
                    [](std::uint16_t bits) { return bits == kPoison; }));
  CHECK(ranks.control(0).failed == 0);
  REQUIRE(ranks.control(1).failed != 0);  // it waits for keys that do not come, and says whose
  CHECK(ranks.control(1).site.peer == 0);
  CHECK(ranks.control(1).site.tag == DeviceTag::kChunkReady);
}

TEST_CASE(
    "ring attention kernel: an abort of the host's ends the waits of CTA 0, which computes, and of others") {
  for (const std::int32_t ctas : {1, 4}) {
    CAPTURE(ctas);
    RingRanks ranks({.batch = 1, .sequence = 40, .heads = 1, .kv_heads = 1, .head_dim = 64}, {1, 2}, ctas, 0);
    ranks.check(1);
    ranks.lent(0).stopped = 1;  // a launch of rank 0 has failed
    constexpr std::uint64_t kDeadline = 10'000'000'000;
    ranks.set_deadline(kDeadline);
    ranks.abort_next();
    ranks.launch(2);
    REQUIRE(ranks.control(1).failed != 0);
    CHECK(ranks.control(1).waited_ns < kDeadline);
    CHECK(ranks.control(1).stopped != 0);
    CHECK(ranks.control(1).epoch == 2);
  }
}

TEST_CASE(
    "ring attention kernel: over several nodes, whose chunks do not come is said by who waits for them") {
  RingRanks ranks({.batch = 1, .sequence = 60, .heads = 1, .kv_heads = 1, .head_dim = 64}, {2, 2});
  ranks.check(1);
  ranks.lent(1).stopped = 1;  // a launch of rank 1 has failed
  ranks.set_deadline(100 * kHostRoundNs);
  ranks.launch(2);
  CHECK(ranks.control(1).failed == 0);
  for (const std::size_t rank : {0, 3}) {
    REQUIRE(ranks.control(rank).failed != 0);
    CHECK(ranks.control(rank).site.peer == 1);
  }
  CHECK(ranks.control(0).site.tag == DeviceTag::kChunkReady);
  CHECK(ranks.control(3).site.tag == DeviceTag::kArrivals);
}

TEST_CASE("ring attention kernel: of two launches at a time one fails and says so") {
  RingRanks rank({.batch = 1, .sequence = 400, .heads = 2, .kv_heads = 1, .head_dim = 64}, {1, 1});
  rank.check(1);
  rank.check_two([&] { rank.launch(2); });
}

}  // namespace
}  // namespace mkernel::test

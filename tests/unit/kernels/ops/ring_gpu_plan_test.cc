// Ring attention on the cuda executor, as far as no GPU is needed: which keys a query sees where, where
// chunks lie, and what is refused by name.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/ring_attention/attention/plan.h"
#include "kernels/ops/ring_attention/attention_backward/plan.h"
#include "kernels/ops/ring_attention/estimate.h"
#include "kernels/ops/ring_attention/gpu_plan.h"
#include "kernels/plan/positions.h"
#include "tests/support/require.h"

namespace mkernel::kernels {
namespace {

constexpr AttentionShape kShape{.batch = 2, .sequence = 4096, .heads = 16, .kv_heads = 4, .head_dim = 128};

RingGpuPlan plan_of(const AttentionShape& shape, const Topology& topology, std::uint32_t rank,
                    const RingAttentionOptions& options = {}, std::int32_t sms = 132) {
  return test::require(RingGpuPlan::make(shape, topology, rank, kH200.with_sms(sms), options));
}
RingGpuPlan plan_of(const AttentionShape& shape, std::uint32_t world, std::uint32_t rank,
                    const RingAttentionOptions& options = {}, std::int32_t sms = 132) {
  return plan_of(shape, Topology(1, world), rank, options, sms);
}
/// As they are met.
std::vector<int> sources_of(const Topology& topology, std::uint32_t rank) {
  const RingGpuPlan plan = plan_of(kShape, topology, rank);
  return {plan.gather.sources, plan.gather.sources + plan.gather.world};
}

std::string refusal(const AttentionShape& shape, const RingAttentionOptions& options = {},
                    const Topology& topology = {1, 4}, std::int32_t sms = 132) {
  return RingGpuPlan::make(shape, topology, 0, kH200.with_sms(sms), options).status().to_string();
}

/// Keys that the query in row `row` of the own positions sees, by position in the sequence.
std::vector<std::int64_t> seen(const RingGpuPlan& plan, std::int32_t row) {
  const KvGatherPlan& gather = plan.gather;
  const int part = row < plan.part_begin(1) ? 0 : 1;
  std::vector<std::int64_t> positions;
  for (std::int32_t step = 0; step < gather.world; ++step) {
    const std::int32_t source = gather.source(step);
    const Positions held = held_positions(plan.shape.sequence, gather.causal, gather.world, source);
    const std::int32_t keys = step > 0            ? gather.visible_keys(source, part)
                              : plan.shape.causal ? row + 1
                                                  : gather.positions(source);
    for (std::int32_t key = 0; key < keys; ++key) positions.push_back(held.at(key));
  }
  std::sort(positions.begin(), positions.end());
  return positions;
}

}  // namespace

TEST_CASE("ring attention gpu plan: a query sees every key up to its own position once, or all of them") {
  for (const std::uint32_t world : {1U, 2U, 3U, 4U, 7U}) {
    for (const std::int64_t sequence : {1, 3, 8, 29, 64}) {
      for (const bool causal : {false, true}) {
        AttentionShape shape = kShape;
        shape.sequence = sequence;
        shape.causal = causal;
        for (std::uint32_t rank = 0; rank < world; ++rank) {
          const RingGpuPlan plan = plan_of(shape, world, rank);
          const Positions own = held_positions(sequence, causal, world, rank);
          for (std::int32_t row = 0; row < plan.gather.positions(plan.gather.rank); ++row) {
            const auto keys = seen(plan, row);
            const std::int64_t count = causal ? own.at(row) + 1 : sequence;
            REQUIRE(static_cast<std::int64_t>(keys.size()) == count);
            for (std::int64_t i = 0; i < count; ++i) CHECK(keys[static_cast<std::size_t>(i)] == i);
          }
        }
      }
    }
  }
}

TEST_CASE("ring attention gpu plan: own keys first, then those of the node, then the nodes before this one") {
  CHECK(sources_of({1, 4}, 1) == std::vector{1, 0, 3, 2});
  CHECK(sources_of({3, 2}, 2) == std::vector{2, 3, 0, 1, 4, 5});
  CHECK(sources_of({2, 3}, 5) == std::vector{5, 4, 3, 2, 1, 0});
}

TEST_CASE(
    "ring attention gpu plan: over several nodes a rank puts what it holds to every rail peer, in puts as "
    "long "
    "as heads allow") {
  for (const std::int64_t sequence : {1, 4096, 6 * 1200, 100003}) {
    AttentionShape shape = kShape;
    shape.sequence = sequence;
    for (std::uint32_t rank = 0; rank < 6; ++rank) {
      const RingGpuPlan plan = plan_of(shape, {3, 2}, rank, {.comm_ctas = rank % 2 == 0 ? 1 : 0});
      const KvGatherPlan& gather = plan.gather;
      const std::int32_t me = gather.rank;
      CHECK(gather.rails() == 2);
      CHECK(plan.lanes() == 1);
      std::uint64_t bytes = 0;
      for (std::int32_t chunk = 0; chunk < gather.chunks(); ++chunk) {
        CHECK(gather.chunk_offset(me, chunk) == bytes);
        bytes += gather.chunk_bytes(me, chunk);
        CHECK(gather.arrivals(2, 1, chunk) == 2 * gather.puts() + 2 * static_cast<std::uint64_t>(chunk) + 2);
      }
      CHECK(bytes == static_cast<std::uint64_t>(gather.rows(me)) * 256);
      CHECK(plan.wire_bytes() == 2 * 2 * bytes);
      CHECK(gather.arrivals(2, 1, gather.chunks() - 1) == 3 * gather.puts());
      const std::uint64_t head_bytes = bytes / static_cast<std::uint64_t>(gather.heads);
      CHECK(gather.chunk_bytes(me, 0) >= std::min<std::uint64_t>(head_bytes, 1 << 20));
    }
  }
  CHECK(plan_of(kShape, {1, 4}, 0).lanes() == 0);
  CHECK(plan_of(kShape, {1, 4}, 0).wire_bytes() == 0);
}

TEST_CASE("ring attention gpu plan: every chunk of every stream is pushed once, in order, own ones ahead") {
  for (const Topology& topology : {Topology{1, 1}, {1, 4}, {2, 1}, {2, 2}, {4, 2}}) {
    for (const std::int32_t own_between : {1, 2, 3, 7, 64}) {
      KvGatherPlan gather = plan_of(kShape, topology, 0, {.comm_ctas = 2}).gather;
      gather.cut(200);
      gather.own_between = own_between;
      gather.first_heads = 0;
      std::vector<std::int32_t> next(static_cast<std::size_t>(gather.streams()));
      for (std::int32_t i = 0; i < gather.turns(); ++i) {
        const KvGatherPlan::Turn turn = gather.turn(i);
        REQUIRE(turn.stream >= 0);
        REQUIRE(turn.stream < gather.streams());
        CHECK(turn.chunk == next[static_cast<std::size_t>(turn.stream)]++);
        if (turn.stream < KvGatherPlan::kTensors) continue;
        // A peer's chunk comes when the peer has pushed its own one; this rank is as far, or beyond.
        CHECK(next[1] >= std::min(gather.chunks(), (turn.chunk + 1) * own_between));
      }
      for (const std::int32_t chunks : next) CHECK(chunks == (gather.world > 1 ? gather.chunks() : 0));
    }
  }
  for (const std::int32_t first_heads : {0, 1, 3}) {
    KvGatherPlan gather = plan_of(kShape, {1, 4}, 0, {.comm_ctas = 2}).gather;
    gather.cut(200);
    gather.first_heads = first_heads;
    std::int32_t next[KvGatherPlan::kTensors][3] = {};
    for (std::int32_t i = 0; i < gather.turns(); ++i) {
      const KvGatherPlan::Turn turn = gather.turn(i);
      const bool first = turn.chunk < gather.first_chunk(first_heads);
      CHECK((turn.target != KvGatherPlan::kAllTargets) == first);
      for (std::int32_t target = 0; target < 3; ++target)
        if (!first || turn.target == target) CHECK(turn.chunk == next[turn.stream][target]++);
      // All first heads to one rank before any to the one behind it, and to all before the others.
      for (std::int32_t before = 0; before < (first ? turn.target : 3); ++before)
        CHECK(next[turn.stream][before] >= gather.first_chunk(first_heads));
    }
    for (const auto& tensor : next)
      for (const std::int32_t chunks : tensor) CHECK(chunks == gather.chunks());
  }
  // A chunk that comes over the wire takes as long as three own ones, which go to two places, and itself.
  const AttentionShape large{.batch = 4, .sequence = 49152, .heads = 16, .kv_heads = 16, .head_dim = 128};
  CHECK(plan_of(large, {2, 2}, 0, {.comm_ctas = 8}).gather.own_between == 3);
  CHECK(plan_of(large, {1, 4}, 0).gather.own_between == 1);
}

TEST_CASE("attention: where a causal mask ends what queries see, nothing at their right is no window") {
  AttentionShape shape{.batch = 1,
                       .sequence = 300,
                       .heads = 1,
                       .kv_heads = 1,
                       .head_dim = 64,
                       .causal = true,
                       .window_right = 0};
  CHECK(test::require(AttentionPlan::make(shape)).plain());
  CHECK(test::require(AttentionBackwardPlan::make(shape)).plain());
  shape.causal = false;
  CHECK_FALSE(test::require(AttentionPlan::make(shape)).plain());
  CHECK_FALSE(test::require(AttentionBackwardPlan::make(shape)).plain());
}

TEST_CASE(
    "attention: the seconds that are expected follow the machine's rates, the mask, links and the wire") {
  const AttentionShape full{.batch = 4, .sequence = 12288, .heads = 16, .kv_heads = 16, .head_dim = 128};
  AttentionShape causal = full;
  causal.causal = true;
  const auto alone = [](const AttentionShape& shape, const Machine& machine) {
    return estimated_seconds(test::require(AttentionPlan::make(shape)), machine);
  };
  const double floating = 4.0 * 4 * 16 * 128 * 12288 * 12288;
  CHECK(floating / alone(full, kH200) > 580e12);
  CHECK(floating / alone(full, kH200) < 660e12);
  CHECK(alone(causal, kH200) > 0.5 * alone(full, kH200));
  CHECK(alone(causal, kH200) < 0.6 * alone(full, kH200));
  CHECK(alone(full, kH200.with_sms(33)) > 3.8 * alone(full, kH200));
  CHECK(alone(full, kH20) > 2.5 * alone(full, kH200));
  const AttentionShape decode{
      .batch = 1, .sequence = 1, .heads = 64, .kv_heads = 64, .head_dim = 128, .keys = 1 << 20};
  const double bytes = 2.0 * 2 * 64 * 128 * (1 << 20);
  CHECK(alone(decode, kH200) >= bytes / kH200.memory_bytes);

  // Packed sequences of one length take as long as a batch of them, and windows hide keys.
  AttentionShape packed = causal;
  packed.batch = 1;
  packed.sequence *= 4;
  packed.max_sequences = 4;
  CHECK(alone(packed, kH200) > 0.98 * alone(causal, kH200));
  CHECK(alone(packed, kH200) < 1.02 * alone(causal, kH200));
  AttentionShape window = causal;
  window.window_left = 1023;
  CHECK(alone(window, kH200) > 2.0 * 1024 / 12288 * alone(causal, kH200));
  CHECK(alone(window, kH200) < 3.0 * 1024 / 12288 * alone(causal, kH200));

  // Ranks share the work; long sequences hide links and wire, short ones do not.
  const auto ring = [](const AttentionShape& shape, const Topology& topology, const Machine& machine) {
    return estimated_seconds(test::require(RingGpuPlan::make(shape, topology, 1, machine)));
  };
  for (AttentionShape shape : {full, causal}) {
    shape.sequence = 98304;
    const double one = alone(shape, kH200), node = ring(shape, {1, 4}, kH200),
                 nodes = ring(shape, {2, 2}, kH200);
    CHECK(node > one / 4);
    CHECK(node < 1.15 * one / 4);
    CHECK(nodes >= 0.99 * node);
    CHECK(nodes < 1.25 * one / 4);
  }
  AttentionShape brief = full;
  brief.sequence = 2048;
  Machine slow = kH200;
  slow.nic /= 10;
  const double wire = static_cast<double>(plan_of(brief, {2, 2}, 0).wire_bytes()) / slow.nic;
  CHECK(ring(brief, {2, 2}, slow) > wire);
  CHECK(ring(brief, {2, 2}, slow) < 1.3 * wire);
  Machine narrow = kH200;
  narrow.links_bulk /= 20;
  CHECK(ring(brief, {1, 4}, narrow) > 1.5 * ring(brief, {1, 4}, kH200));
}

TEST_CASE("ring attention gpu plan: tiles of queries are those of both parts") {
  AttentionShape shape = kShape;
  shape.causal = true;
  shape.sequence = 8 * 130 - 1;  // parts of 129 and 130 positions
  const RingGpuPlan plan = plan_of(shape, 4, 0);
  CHECK(plan.gather.part_rows[0][0] == 129);
  CHECK(plan.first_tiles == 2);
  CHECK(plan.tasks.tasks() == 2 * 16 * 4);
  shape.causal = false;
  CHECK(plan_of(shape, 4, 0).tasks.tasks() == 2 * 16 * 3);
}

TEST_CASE("ring attention gpu plan: slabs and words follow each other, and chunks cover every head once") {
  for (const std::int64_t sequence : {1, 5, 4096, 100003}) {
    AttentionShape shape = kShape;
    shape.sequence = sequence;
    for (const bool causal : {false, true}) {
      shape.causal = causal;
      const KvGatherPlan gather = plan_of(shape, 4, 1).gather;
      CHECK(gather.heads == 8);
      CHECK(gather.chunks() == 8 * gather.blocks);
      std::uint64_t slab = 0, word = 0;
      for (std::int32_t source = 0; source < 4; ++source) {
        for (std::int32_t tensor = 0; tensor < KvGatherPlan::kTensors; ++tensor) {
          CHECK(gather.slab_offset(source, tensor) == slab);
          CHECK(gather.ready_offset(source, tensor) == word);
          slab += static_cast<std::uint64_t>(gather.rows(source)) * 256;
          word += 8 * static_cast<std::uint64_t>(gather.chunks());
        }
        for (std::int32_t head = 0; head < gather.heads; ++head) {
          std::int32_t row = 0;
          for (std::int32_t chunk = gather.first_chunk(head); chunk < gather.first_chunk(head + 1); ++chunk) {
            CHECK(gather.head_of(chunk) == head);
            const std::int32_t rows = gather.chunk_rows(source, chunk);
            if (rows > 0) {
              CHECK(gather.chunk_row(chunk) == row);
              CHECK(gather.chunk_of(head, row) == chunk);
              CHECK(gather.chunk_of(head, row + rows - 1) == chunk);
            }
            row += rows;
          }
          CHECK(row == gather.positions(source));
        }
      }
      CHECK(gather.data_bytes() == slab);
      CHECK(gather.word_bytes() == word);
      CHECK(slab == static_cast<std::uint64_t>(2 * 2 * sequence * 4 * 128 * 2));
      CHECK(gather.block_rows * gather.row_bytes <= gather.shares * (std::int64_t{128} << 10));
      // Shares of a block in the middle are whole pieces.
      if (gather.blocks > 1) CHECK(gather.block_rows % (gather.shares * gather.piece_rows()) == 0);
    }
  }
  CHECK(plan_of(kShape, 4, 0).gather.blocks == 1);
}

TEST_CASE("ring attention gpu plan: CTAs that push") {
  CHECK(plan_of(kShape, 4, 0).comm_ctas == 8);
  CHECK(plan_of(kShape, 4, 0, {}, 30).comm_ctas == 7);
  CHECK(plan_of(kShape, 1, 0).comm_ctas == 1);
  const RingGpuPlan plan = plan_of(kShape, 4, 0, {.comm_ctas = 3});
  CHECK(plan.comm_ctas == 3);
  CHECK(plan.gather.count(4) == 15);
  CHECK(plan.ctas == 132);
}

TEST_CASE("ring attention gpu plan: what the cuda executor does not have is refused by name") {
  CHECK(refusal(kShape, {}, {5, 13}) == "INVALID_ARGUMENT: ring_attention: world = 65, must be at most 64");
  CHECK(refusal(kShape, {}, {17, 1}) ==
        "INVALID_ARGUMENT: ring_attention: nodes = 17, must be at most 16 on the cuda executor");
  CHECK(refusal(kShape, {}, {1, 17}) ==
        "INVALID_ARGUMENT: ring_attention: ranks of a node = 17, must be at most 16 on the cuda executor");
  CHECK(refusal(kShape, {.comm_ctas = 67}) ==
        "INVALID_ARGUMENT: ring_attention: comm_ctas = 67, must be 0..66, half of the multiprocessors");
  CHECK(refusal(kShape, {}, {2, 2}, 1) ==
        "INVALID_ARGUMENT: ring_attention: sms = 1, must be at least 2 over several nodes: one does not "
        "compute");
  CHECK(refusal(kShape, {}, {1, 4}, 1) == "OK");
  AttentionShape shape = kShape;
  shape.head_dim = 96;
  CHECK(refusal(shape) ==
        "INVALID_ARGUMENT: ring_attention: head_dim = 96, but it must be 64 or 128 on the cuda executor");
  shape = kShape;
  shape.keys = 5;
  CHECK(refusal(shape) ==
        "INVALID_ARGUMENT: ring_attention: keys = 5, but it must be 0 or the sequence, 4096");
  shape = kShape;
  shape.heads = shape.kv_heads = 65;
  CHECK(refusal(shape) == "OK");
  shape.sequence = std::int64_t{1} << 23;
  CHECK(refusal(shape) ==
        "INVALID_ARGUMENT: ring_attention: batch * sequence * kv_heads = 1090519040, must be at most "
        "1073741824");
  shape.sequence = 8;
  shape.heads = shape.kv_heads = 1 << 20;
  shape.head_dim = 64;
  CHECK(refusal(shape) ==
        "INVALID_ARGUMENT: ring_attention: batch * kv_heads = 2097152, must be at most 1048576");
  shape = kShape;
  shape.sequence = std::int64_t{1} << 30;
  CHECK(refusal(shape) ==
        "INVALID_ARGUMENT: ring_attention: batch * sequence = 2147483648, but it must be at most 1073741824");
}

TEST_CASE("ring attention gpu plan: packed sequences travel as one, and are expected to take less time") {
  for (const bool causal : {false, true}) {
    for (const Topology& topology : {Topology(1, 4), Topology(2, 2)}) {
      AttentionShape shape = kShape;
      shape.batch = 1;
      shape.sequence = 32768;
      shape.causal = causal;
      const RingGpuPlan one = plan_of(shape, topology, 1);
      double before = 2 * estimated_seconds(one);
      for (const std::int64_t sequences : {1, 8, 64}) {
        shape.max_sequences = sequences;
        const RingGpuPlan packed = plan_of(shape, topology, 1);
        CHECK(packed.gather.data_bytes() == one.gather.data_bytes());
        CHECK(packed.gather.positions(3) == 8192);
        CHECK(packed.wire_bytes() == one.wire_bytes());
        CHECK(packed.signature().find("max_sequences=" + std::to_string(sequences)) != std::string::npos);
        const double now = estimated_seconds(packed);
        CHECK((now > 0 && now <= before));
        before = now;
      }
      // Of short ones tiles are not full.
      shape.max_sequences = 1024;
      CHECK(estimated_seconds(plan_of(shape, topology, 1)) > before);
      shape.sequence = 4;
      CHECK(estimated_seconds(plan_of(shape, topology, 3)) > 0);
    }
  }
}

}  // namespace mkernel::kernels

// Seconds that are expected of the backward pass of attention, of a rank alone and of a ring.
#include <doctest/doctest.h>

#include <cstdint>

#include "kernels/ops/ring_attention/attention_backward/plan.h"
#include "kernels/ops/ring_attention/backward/plan.h"
#include "kernels/ops/ring_attention/estimate.h"
#include "kernels/plan/machine.h"
#include "tests/support/require.h"

namespace mkernel::kernels {
namespace {

double alone(const AttentionShape& shape, const Machine& machine = kH100) {
  return estimated_seconds(test::require(AttentionBackwardPlan::make(shape)), machine);
}
double ring(const AttentionShape& shape, const Topology& topology, const Machine& machine = kH100) {
  return estimated_seconds(
      test::require(RingBackwardPlan::make(shape, topology, topology.world() - 1, machine)));
}
double ring(const AttentionShape& shape, std::uint32_t world, const Machine& machine = kH100) {
  return ring(shape, Topology(1, world), machine);
}

}  // namespace

TEST_CASE("attention backward: expected is what an H100 took, within a tenth") {
  struct Row {
    std::int64_t sequence, head_dim;
    bool causal;
    double milliseconds;  ///< of 4 * 16 heads (tests/perf/results/h100x1-2026-11-26-attention.json)
  };
  for (const Row& row : {Row{6144, 128, false, 5.64},
                         {12288, 128, false, 22.6},
                         {6144, 128, true, 2.99},
                         {12288, 128, true, 11.4},
                         {12288, 64, false, 13.5},
                         {12288, 64, true, 6.52}}) {
    const double expected = 1e3 * alone({.batch = 4,
                                         .sequence = row.sequence,
                                         .heads = 16,
                                         .kv_heads = 16,
                                         .head_dim = row.head_dim,
                                         .causal = row.causal});
    CAPTURE(row.sequence);
    CAPTURE(row.causal);
    CAPTURE(expected);
    CHECK(expected > 0.9 * row.milliseconds);
    CHECK(expected < 1.1 * row.milliseconds);
  }
}

TEST_CASE("attention backward: a window hides tiles of queries, and leaves at least what it shows") {
  AttentionShape causal{
      .batch = 4, .sequence = 12288, .heads = 16, .kv_heads = 16, .head_dim = 128, .causal = true};
  AttentionShape window = causal;
  window.window_left = 1023;
  const double share = 2.0 * 1024 / 12288;  // of the pairs of a query and a key
  CHECK(alone(window) > share * alone(causal));
  CHECK(alone(window) < 1.3 * share * alone(causal));
  window.window_left = 12287;
  CHECK(alone(window) > 0.97 * alone(causal));
  CHECK(alone(window) < 1.1 * alone(causal));
}

TEST_CASE("attention backward: packed sequences count as equally long") {
  const AttentionShape apart{.batch = 4, .sequence = 6144, .heads = 16, .kv_heads = 16, .head_dim = 128};
  AttentionShape packed = apart;
  packed.batch = 1;
  packed.sequence = 4 * apart.sequence;
  packed.max_sequences = 4;
  CHECK(alone(packed) > 0.97 * alone(apart));
  CHECK(alone(packed) < 1.03 * alone(apart));
}

TEST_CASE("attention backward: expected seconds follow the machine, the mask, the ranks and the links") {
  const AttentionShape full{.batch = 4, .sequence = 24576, .heads = 16, .kv_heads = 16, .head_dim = 128};
  CHECK(alone(full, kH100.with_sms(33)) > 3.8 * alone(full));
  CHECK(alone(full, kH20) > 2.5 * alone(full));
  AttentionShape shared = full;
  shared.kv_heads = 2;
  CHECK(alone(shared) > 0.95 * alone(full));
  CHECK(alone(shared) < 1.05 * alone(full));
  for (AttentionShape shape : {full, shared}) {
    for (const bool causal : {false, true}) {
      shape.causal = causal;
      CAPTURE(shape.kv_heads);
      CAPTURE(causal);
      const double one = alone(shape), four = ring(shape, 4);
      CHECK(ring(shape, 1) > 0.97 * one);
      CHECK(ring(shape, 1) < 1.1 * one);  // parts give another order of tasks
      CHECK(four > 0.99 * one / 4);
      CHECK(four < 1.15 * one / 4);
    }
  }
  AttentionShape brief = full;
  brief.sequence = 2048;
  Machine narrow = kH100;
  narrow.links_bulk /= 50;
  CHECK(ring(brief, 4, narrow) > 1.2 * ring(brief, 4));
}

TEST_CASE(
    "attention backward: over several nodes long sequences hide the wire, and short ones wait for it twice") {
  const AttentionShape full{.batch = 4, .sequence = 49152, .heads = 16, .kv_heads = 16, .head_dim = 128};
  for (const bool causal : {false, true}) {
    AttentionShape shape = full;
    shape.causal = causal;
    CAPTURE(causal);
    const double one_node = ring(shape, 4), nodes = ring(shape, {2, 2});
    CAPTURE(nodes / one_node);
    CHECK(nodes > 0.99 * one_node);
    CHECK(nodes < 1.05 * one_node);
  }
  // Keys and values of a rank, 25 MB, and as many bytes of their gradients.
  AttentionShape brief = full;
  brief.sequence = 3072;
  Machine slow = kH100;
  slow.nic = 5e9;
  const double wire = 2 * 25.2e6 / slow.nic;
  CHECK(ring(brief, {2, 2}, slow) > wire);
  CHECK(ring(brief, {2, 2}, slow) < 1.3 * wire);
}

TEST_CASE(
    "attention backward: more CTAs add up for other nodes where ranks are many, and one at least does") {
  const auto sum_ctas = [](const AttentionShape& shape, const Topology& topology) {
    return test::require(RingBackwardPlan::make(shape, topology, 0, kH100, {.comm_ctas = 8})).sum_ctas;
  };
  const AttentionShape full{.batch = 4, .sequence = 49152, .heads = 16, .kv_heads = 16, .head_dim = 128};
  CHECK(sum_ctas(full, {1, 4}) == 0);
  CHECK(sum_ctas(full, {2, 1}) >= 1);
  CHECK(sum_ctas(full, {2, 8}) > sum_ctas(full, {2, 2}));
  CHECK(sum_ctas({.batch = 1, .sequence = 1, .heads = 1, .kv_heads = 1, .head_dim = 64}, {3, 2}) == 1);
}

}  // namespace mkernel::kernels

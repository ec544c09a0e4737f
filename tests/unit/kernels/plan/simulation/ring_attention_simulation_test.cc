// Ring attention's plan on every split of up to 16 ranks: whatever the order of steps, nobody is stuck,
// nothing is overwritten while somebody may still read it, and every tile of queries meets keys and values of
// this launch.
#include <doctest/doctest.h>

#include "tests/unit/kernels/plan/simulation/cases.h"

namespace mkernel::test::ring_attention {
namespace {

using kernels::Topology;

/// One position, of the last rank: nobody's tiles wait for the ranks that pass it on.
const RingAttentionCase kOne{{.batch = 1, .sequence = 1, .heads = 1, .kv_heads = 1, .head_dim = 64}, 1, 2, 4};
/// Fewer positions than ranks; with a mask, ranks whose keys some others do not see.
const RingAttentionCase kShort{
    {.batch = 1, .sequence = 3, .heads = 1, .kv_heads = 1, .head_dim = 64}, 1, 2, 4};
const RingAttentionCase kShortCausal{
    {.batch = 1, .sequence = 5, .heads = 1, .kv_heads = 1, .head_dim = 64, .causal = true}, 1, 2, 4};
/// Several chunks of every source, several tasks of every CTA.
const RingAttentionCase kChunks{
    {.batch = 2, .sequence = 70, .heads = 4, .kv_heads = 2, .head_dim = 64}, 2, 4, 5};
const RingAttentionCase kChunksCausal{
    {.batch = 2, .sequence = 70, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = true}, 2, 4, 5};

}  // namespace

TEST_CASE("ring attention: any order of steps ends, and every tile of queries meets this launch's keys") {
  play_everywhere<RingAttentionCase>({kOne, kShort, kShortCausal, kChunks, kChunksCausal}, 8);
  play_everywhere<RingAttentionCase>(
      {{{.batch = 1, .sequence = 900, .heads = 2, .kv_heads = 2, .head_dim = 64, .causal = true}, 3, 6, 64},
       {{.batch = 1, .sequence = 900, .heads = 1, .kv_heads = 1, .head_dim = 128},
        0,
        8,
        0}},  // the plan's own
      2);
}

TEST_CASE("ring attention: the simulation sees what is wrong") {
  check_seen(kChunks, Topology(1, 3), Fault::kOneHalf, "reads rows in launch");
  check_seen(kChunks, Topology(2, 2), Fault::kNoCompletions, "before it is completed");
  check_seen(kShortCausal, Topology(1, 4), Fault::kNoDummySignals, "reads rows in launch");
  check_seen(kShortCausal, Topology(2, 2), Fault::kNoDummySignals, "reads rows in launch");
  check_seen(kChunks, Topology(1, 3), Fault::kCountFirst, "reads rows in launch");
  check_seen(kChunks, Topology(2, 2), Fault::kNoArrivals, "reads rows to push on in launch");
  check_seen(kChunks, Topology(2, 2), Fault::kOneLeaverLess, "stuck");
}

}  // namespace mkernel::test::ring_attention

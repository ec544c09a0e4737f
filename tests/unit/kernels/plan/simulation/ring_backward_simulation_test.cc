// The plan of the backward pass of ring attention on up to 16 ranks on up to four nodes: whatever the order
// of steps, nobody is stuck, every tile of queries takes its adds in order, and nothing is overwritten while
// somebody may read it.
#include <doctest/doctest.h>

#include <vector>

#include "tests/unit/kernels/plan/simulation/cases.h"

namespace mkernel::test::ring_backward {
namespace {

using kernels::Topology;

/// One position, of the last rank.
const RingBackwardCase kOne{{.batch = 1, .sequence = 1, .heads = 1, .kv_heads = 1, .head_dim = 64}, 1, 2, 4};
/// Fewer positions than ranks; with a mask, ranks whose keys some others do not see.
const RingBackwardCase kShortCausal{
    {.batch = 1, .sequence = 5, .heads = 1, .kv_heads = 1, .head_dim = 64, .causal = true}, 1, 2, 4};
/// Several chunks of every source, several tasks of every CTA.
const RingBackwardCase kChunks{
    {.batch = 2, .sequence = 70, .heads = 4, .kv_heads = 2, .head_dim = 64}, 2, 4, 5, 2};
const RingBackwardCase kChunksCausal{
    {.batch = 2, .sequence = 70, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = true}, 2, 4, 5, 1, 2};
/// Several tiles of every part.
const RingBackwardCase kTilesCausal{
    {.batch = 1, .sequence = 900, .heads = 2, .kv_heads = 2, .head_dim = 64, .causal = true}, 3, 6, 64, 3, 2};
/// Heads in several sections, which other nodes' keys are taken by.
const RingBackwardCase kSectionsCausal{
    {.batch = 3, .sequence = 600, .heads = 3, .kv_heads = 3, .head_dim = 64, .causal = true}, 1, 2, 0, 3};
/// The plan's own chunks.
const RingBackwardCase kOwn{
    {.batch = 1, .sequence = 900, .heads = 1, .kv_heads = 1, .head_dim = 128}, 0, 8, 0, 0, 0};

}  // namespace

TEST_CASE("ring attention backward: any order of steps ends, with the sums of this launch") {
  play_everywhere<RingBackwardCase>({kOne, kShortCausal, kChunks, kChunksCausal}, 8);
  play_everywhere<RingBackwardCase>({kTilesCausal, kSectionsCausal, kOwn}, 2);
}

TEST_CASE("ring attention backward: the simulation sees what is wrong") {
  check_seen(kChunks, Topology(1, 3), Fault::kCountFirst, "reads rows in launch");
  check_seen(kChunks, Topology(1, 3), Fault::kSumsUnwaited, "reads partial gradients in launch");
  check_seen(kChunks, Topology(1, 3), Fault::kSumsFirst, "stuck");
  check_seen(kChunks, Topology(2, 2), Fault::kSumsFirst, "stuck");
  check_seen(kChunks, Topology(2, 2), Fault::kSumsUnwaited, "reads partial gradients in launch");
  check_seen(kChunks, Topology(2, 2), Fault::kNodeSumsUnwaited, "reads a node's sum in launch");
  check_seen(kChunks, Topology(2, 2), Fault::kNoCompletions, "before it is completed");
  check_seen(kChunks, Topology(2, 2), Fault::kOneLeaverLess, "stuck");
}

}  // namespace mkernel::test::ring_backward

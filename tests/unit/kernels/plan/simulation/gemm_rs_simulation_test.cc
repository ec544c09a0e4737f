// GEMM+RS's plan on every split of up to 16 ranks: whatever the order of steps, nobody is stuck, nothing is
// overwritten while somebody may still read it, and every sum is made once, of this launch's tiles.
#include <doctest/doctest.h>

#include "tests/unit/kernels/plan/simulation/cases.h"

namespace mkernel::test::gemm_rs {
namespace {

using kernels::Sm90Tile;
using kernels::TileSize;
using kernels::Topology;

constexpr Warps kFew{1, 1}, kMany{9, 5};
const GemmRsCase kOneRow{{{1, 3, 5}, kHost, {.tile = kHostTile, .reduce_ctas = 1}, 16, kFew}};
/// On four nodes every other rank has one.
const GemmRsCase kTwoRows{{{2, 3, 5}, kHost, {.tile = kHostTile, .reduce_ctas = 1}, 16, kFew}};
const GemmRsCase kUnits{{{70, 136, 8}, kHost, {.tile = kHostTile, .reduce_ctas = 1}, 1, kFew}};

}  // namespace

TEST_CASE("GEMM+RS: any order of steps ends, and every sum is made of this launch's tiles") {
  play_everywhere<GemmRsCase>({kOneRow, kTwoRows, kUnits}, 8);
  play_everywhere<GemmRsCase>(
      {{{{131, 520, 8}, kHost, {.tile = TileSize{8, 256, 1}, .reduce_ctas = 2}, 3, kMany}},
       {{{5, 264, 72}, kGpu, {}, 16, kFew}},
       {{{603, 264, 8}, kGpu, {.tile = Sm90Tile::k128x256, .reduce_ctas = 2}, 5, kMany}},
       {{{301, 72, 8}, kGpu, {.tile = Sm90Tile::k128x64, .reduce_ctas = 2}, 2, kFew}}},
      2);
}

TEST_CASE("GEMM+RS: any order of steps ends with marked slots, and nobody reads or marks too early or late") {
  const std::vector<GemmRsCase> cases{
      {kOneRow, true},
      {kTwoRows, true},
      {{{70, 136, 8}, kHost, {.tile = TileSize{64, 64, 2}, .reduce_ctas = 1}, 16, kFew}, true},
      {{{150, 264, 8}, kGpu, {.tile = Sm90Tile::k128x128, .reduce_ctas = 2}, 16, kMany}, true}};
  play_everywhere(cases, 4, Fault::kNone, {{1, 2}, {1, 3}, {1, 4}, {1, 8}, {1, 16}});
  check_seen(cases[2], Topology(1, 3), Fault::kOneHalf, "stores over what has no mark");
  check_seen(cases[2], Topology(1, 3), Fault::kNoMarks, "stores over what has no mark");
  check_seen(cases[2], Topology(1, 3), Fault::kMarkedUnwaited, "reads a tile in launch");
  // A rank without rows that does not wait for the others comes with a third launch before the first is over.
  check_seen(cases[0], Topology(1, 2), Fault::kNoDummySignals, "stores over what has no mark");
}

/// Whoever exchanges dummy signals waits for empty puts of ranks that may put sums before them. Two nodes
/// without rows between two with rows wait for each other, when nobody else sums there. On a GPU somebody
/// always does.
TEST_CASE("GEMM+RS: the warp that exchanges dummy signals must not be the only one that sums") {
  GemmRsCase alone = kTwoRows;
  alone.warps = {1, 0};
  check_seen(alone, Topology(4, 1), Fault::kNone, "stuck");
  check_seen(alone, Topology(4, 2), Fault::kNone, "stuck");
}

TEST_CASE("GEMM+RS: the simulation sees what is wrong") {
  check_seen(kUnits, Topology(1, 3), Fault::kOneHalf, "reads a tile in launch");
  check_seen(kUnits, Topology(2, 2), Fault::kOnePartialsHalf, "reads a node's sum in launch");
  check_seen(kUnits, Topology(2, 1), Fault::kNoCompletions, "before it is completed");
  check_seen(kOneRow, Topology(1, 2), Fault::kNoDummySignals, "reads a tile in launch");
  check_seen(kOneRow, Topology(2, 1), Fault::kNoDummySignals, "reads a node's sum in launch");
  check_seen(kUnits, Topology(1, 3), Fault::kCountFirst, "reads a tile in launch");
  check_seen(kUnits, Topology(2, 2), Fault::kNoArrivals, "reads a node's sum in launch");
  check_seen(kUnits, Topology(2, 2), Fault::kOneLeaverLess, "stuck");
  check_seen(kUnits, Topology(2, 1), Fault::kOwnSumsFirst, "stuck");
  check_seen(kUnits, Topology(2, 2), Fault::kLateFlush, "stuck");
}

}  // namespace mkernel::test::gemm_rs

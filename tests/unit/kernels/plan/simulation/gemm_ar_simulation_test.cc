// GEMM+AR's plan on every split of up to 16 ranks: whatever the order of steps, nobody is stuck, nothing is
// overwritten while somebody may still read it, and every rank copies the sums of this launch. Of the sums
// themselves gemm_rs_simulation_test.cc shows more.
#include <doctest/doctest.h>

#include "tests/unit/kernels/plan/simulation/cases.h"

namespace mkernel::test::gemm_ar {
namespace {

using kernels::Sm90Tile;
using kernels::TileSize;
using kernels::Topology;

constexpr Warps kFew{1, 1}, kMany{9, 8};
const GemmArCase kOneRow{{{1, 3, 5}, kHost, {.tile = kHostTile, .reduce_ctas = 1}, 16, kFew}};
/// On four nodes every other rank has one.
const GemmArCase kTwoRows{{{2, 3, 5}, kHost, {.tile = kHostTile, .reduce_ctas = 1}, 16, kFew}};
const GemmArCase kUnits{{{70, 136, 8}, kHost, {.tile = kHostTile, .reduce_ctas = 1}, 1, kFew}};
const GemmArCase kShared{{{70, 136, 8}, kHost, {.tile = TileSize{64, 64, 2}, .reduce_ctas = 1}, 16, kFew}};
const GemmArCase kSharedByMany{
    {{150, 264, 8}, kGpu, {.tile = Sm90Tile::k128x128, .reduce_ctas = 2}, 16, kMany}};
const std::vector<GemmArCase> kSmall{kOneRow, kTwoRows, kUnits};
const std::vector<GemmArCase> kLarge{
    {{{131, 520, 8}, kHost, {.tile = TileSize{8, 256, 1}, .reduce_ctas = 2}, 3, kMany}},
    {{{5, 264, 72}, kGpu, {}, 16, kFew}},
    {{{603, 264, 8}, kGpu, {.tile = Sm90Tile::k128x256, .reduce_ctas = 2}, 5, kMany}},
    {{{301, 72, 8}, kGpu, {.tile = Sm90Tile::k128x64, .reduce_ctas = 2}, 2, kFew}}};

}  // namespace

TEST_CASE("GEMM+AR: any order of steps ends, and every rank copies this launch's sums") {
  play_everywhere(kSmall, 8);
  play_everywhere(kLarge, 2);
}

TEST_CASE("GEMM+AR: any order of steps ends where every rank sums all rows, with words and with marks") {
  const SumCase units{{70, 136, 8}, kHost, {.tile = TileSize{64, 64, 2}, .reduce_ctas = 1}, 16, kFew};
  const SumAllCase words{units}, marks{units, true};
  for (const bool marked : {false, true}) {
    const std::vector<SumAllCase> cases{
        {{{1, 3, 5}, kHost, {.tile = kHostTile, .reduce_ctas = 1}, 16, kFew}, marked},
        {units, marked},
        {{{150, 264, 8}, kGpu, {.tile = Sm90Tile::k128x128, .reduce_ctas = 2}, 16, kMany}, marked}};
    play_everywhere(cases, 4, Fault::kNone, {{1, 2}, {1, 3}, {1, 4}, {1, 8}, {1, 16}});
  }
  check_seen(words, Topology(1, 3), Fault::kOneHalf, "reads a tile in launch");
  check_seen(words, Topology(1, 3), Fault::kCountFirst, "reads a tile in launch");
  check_seen(marks, Topology(1, 3), Fault::kOneHalf, "stores over what has no mark");
  check_seen(marks, Topology(1, 3), Fault::kNoMarks, "stores over what has no mark");
  check_seen(marks, Topology(1, 3), Fault::kMarkedUnwaited, "reads a tile in launch");
}

TEST_CASE("GEMM+AR: any order of steps ends with marked sums, and nobody copies or marks too early or late") {
  for (const bool slots : {false, true}) {
    const std::vector<MarkedSumsCase> cases{
        {kOneRow, slots}, {kTwoRows, slots}, {kShared, slots}, {kSharedByMany, slots}};
    play_everywhere(cases, 6, Fault::kNone, {{1, 2}, {1, 3}, {1, 4}, {1, 8}});
    play_everywhere<MarkedSumsCase>({{kTwoRows, slots}, {kShared, slots}}, 2, Fault::kNone, {{1, 16}});
    check_seen(cases[2], Topology(1, 3), Fault::kLateMarks, "stores over what has no mark");
    check_seen(cases[2], Topology(1, 3), Fault::kNoMarks, "stores over what has no mark");
    check_seen(cases[2], Topology(1, 3), Fault::kMarkedUnwaited,
               slots ? "reads a tile in launch" : "reads a sum in launch");
  }
  check_seen(MarkedSumsCase{kShared}, Topology(1, 3), Fault::kNoMarks, "reads a sum in launch 1");
  check_seen(MarkedSumsCase{kShared, true}, Topology(1, 3), Fault::kOneHalf, "stores over what has no mark");
}

TEST_CASE("GEMM+AR: the simulation sees what is wrong") {
  check_seen(kUnits, Topology(2, 1), Fault::kNoCompletions, "before it is completed");
  check_seen(kUnits, Topology(1, 3), Fault::kCountFirst, "in launch");
  check_seen(kUnits, Topology(2, 1), Fault::kNoArrivals, "in launch");
  check_seen(kUnits, Topology(2, 2), Fault::kOneLeaverLess, "stuck");
  check_seen(kUnits, Topology(2, 2), Fault::kLateFlush, "stuck");
  check_seen(kUnits, Topology(1, 8), Fault::kCopiesFirst, "stuck");
}

}  // namespace mkernel::test::gemm_ar

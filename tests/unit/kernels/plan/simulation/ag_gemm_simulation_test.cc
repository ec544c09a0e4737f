// AG+GEMM's plan on every split of up to 16 ranks: whatever the order of steps, nobody is stuck, nothing is
// overwritten while somebody may still read it, and everybody computes c from the rows of this launch.
#include <doctest/doctest.h>

#include <utility>

#include "tests/unit/kernels/plan/simulation/cases.h"

namespace mkernel::test::ag_gemm {
namespace {

using kernels::Sm90Tile;
using kernels::TileSize;
using kernels::Topology;

const AgGemmCase kOneRow{{1, 3, 5}, kHost, {.tile = kHostTile, .comm_ctas = 1}};
/// On four nodes every other rank has one.
const AgGemmCase kTwoRows{{2, 3, 5}, kHost, {.tile = kHostTile, .comm_ctas = 1}};
/// Blocks of four rows: several of every source.
const AgGemmCase kBlocks{{23, 40, 16}, kHost, {.tile = TileSize{4, 16, 1}, .comm_ctas = 2}};
/// Tiles that several sources share: rows in two parts; the last of three sources in two tiles; clusters.
const AgGemmCase kShared{{15, 40, 9000}, kHost, {.tile = TileSize{16, 16, 1}, .comm_ctas = 2}};
const AgGemmCase kSharedCut{{11, 40, 16}, kHost, {.tile = TileSize{8, 16, 1}, .comm_ctas = 1}};
const AgGemmCase kSharedClusters{{50, 136, 16}, kHost, {.tile = TileSize{16, 64, 2}, .comm_ctas = 2}};

}  // namespace

TEST_CASE("AG+GEMM: any order of steps ends, and every tile is computed from this launch's rows") {
  play_everywhere<AgGemmCase>({kOneRow, kTwoRows, kBlocks}, 8);
  play_everywhere<AgGemmCase>(
      {{{13, 70, 9000}, kHost, {.tile = kHostTile, .comm_ctas = 1}},          // rows in two parts
       {{197, 136, 8}, kHost, {.tile = TileSize{8, 64, 2}, .comm_ctas = 2}},  // clusters
       {{5, 264, 72}, kGpu, {}},                                              // as the plan chooses
       {{2049, 8, 16}, kGpu, {.tile = Sm90Tile::k128x64, .comm_ctas = 6, .late_tiles = 3}},
       {{403, 512, 8}, kGpu, {.tile = Sm90Tile::k128x256, .comm_ctas = 4, .tail_tiles = 3, .late_tiles = 2}},
       {{17, 136, 24584}, kGpu, {.tile = Sm90Tile::k256x128, .comm_ctas = 2}}},  // rows in four parts
      2);
}

TEST_CASE("AG+GEMM of few rows: tiles hold rows of several sources, each of which is waited for") {
  play_everywhere<AgGemmCase>({kShared, kSharedCut, kSharedClusters}, 4);
  for (const auto& [few, ranks] : {std::pair{kShared, 2U}, {kSharedCut, 3U}, {kSharedClusters, 4U}}) {
    const auto plan = few.plan(Topology(1, ranks), 0);
    REQUIRE(plan.ok());
    CHECK(plan->gather.shared);
  }
  check_seen(kShared, Topology(1, 3), Fault::kOneHalf, "reads rows in launch");
  check_seen(kShared, Topology(2, 2), Fault::kNoCompletions, "before it is completed");
  check_seen(kShared, Topology(1, 3), Fault::kCountFirst, "reads rows in launch");
  check_seen(kShared, Topology(2, 2), Fault::kNoArrivals, "reads rows to push on in launch");
}

TEST_CASE("AG+GEMM: the simulation sees what is wrong") {
  check_seen(kBlocks, Topology(1, 3), Fault::kOneHalf, "reads rows in launch");
  check_seen(kBlocks, Topology(2, 2), Fault::kNoCompletions, "before it is completed");
  check_seen(kOneRow, Topology(1, 2), Fault::kNoDummySignals, "reads rows in launch");
  check_seen(kOneRow, Topology(2, 2), Fault::kNoDummySignals, "reads rows in launch");
  check_seen(kBlocks, Topology(1, 3), Fault::kCountFirst, "reads rows in launch");
  check_seen(kBlocks, Topology(2, 2), Fault::kNoArrivals, "reads rows to push on in launch");
  check_seen(kBlocks, Topology(2, 2), Fault::kOneLeaverLess, "stuck");
}

}  // namespace mkernel::test::ag_gemm

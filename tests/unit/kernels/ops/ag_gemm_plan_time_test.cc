// What plans of AG+GEMM are expected to take, and what they choose for it.
#include <doctest/doctest.h>

#include <cstdint>

#include "tests/unit/kernels/ops/ag_gemm_plan_of.h"

namespace mkernel::kernels {
namespace {

TEST_CASE("the plan makes the most of links and SMs: estimates for four H200s against the product alone") {
  const auto ratio = [](std::int64_t size, const AgGemmOptions& options = {}) {
    const GemmShape shape{size, size / 4, size};
    const double product = estimated_seconds(shape, ag_gemm_plan_of(shape, 1, 0));
    return estimated_seconds(shape, ag_gemm_plan_of(shape, 4, 0, options)) / product;
  };
  CHECK(ratio(8192) < 1.12);
  CHECK(ratio(16384) < 1.07);
  CHECK(ratio(8192) < ratio(8192, {.tile = Sm90Tile::k128x256, .tail_tiles = 0}));
  CHECK(ratio(4096) < ratio(4096, {.tile = Sm90Tile::k128x256, .tail_tiles = 0}));
}

TEST_CASE("a row more than fills a block is expected to take the time of a row on the links") {
  const auto seconds = [](std::int64_t rows, const Topology& topology) {
    const GemmShape shape{rows, 1024, 4096};
    return estimated_seconds(shape, ag_gemm_plan_of(shape, topology, 0));
  };
  for (const Topology& topology : {Topology(1, 4), Topology(2, 1), Topology(2, 2)})
    CHECK(seconds(4097, topology) < 1.15 * seconds(4096, topology));
}

TEST_CASE("as many CTAs push as the product waits for: few when it is long and rows go to one neighbour") {
  const auto pushing = [](const Topology& topology, std::int64_t size) {
    return ag_gemm_plan_of({size, size / topology.world(), size}, topology, 0).comm_ctas;
  };
  CHECK(pushing(Topology(1, 2), 4096) >= 8);
  CHECK(pushing(Topology(1, 2), 8192) < pushing(Topology(1, 2), 4096));
  CHECK(pushing(Topology(1, 2), 16384) == 4);
  CHECK(pushing(Topology(2, 1), 4096) == 6);
  CHECK(pushing(Topology(2, 1), 16384) == 6);
  CHECK(pushing(Topology(1, 4), 8192) >= 8);
}

TEST_CASE("CTAs that have pushed all their rows compute too, when there is time for a tile") {
  const auto plan_for = [](const Topology& topology, std::int64_t size) {
    return ag_gemm_plan_of({size, size / topology.world(), size}, topology, 0);
  };
  CHECK(plan_for(Topology(1, 4), 2048).assignment.late == 0);  // the links take longer than the product
  const AgGemmPlan plan = plan_for(Topology(1, 4), 16384);
  const std::int32_t late_clusters = plan.comm_ctas / plan.tile.cluster - 1;
  CHECK(plan.assignment.late_clusters == late_clusters);
  CHECK(plan.assignment.late >= late_clusters);
  const GemmShape shape{16384, 4096, 16384};
  CHECK(estimated_seconds(shape, plan) <
        estimated_seconds(shape, ag_gemm_plan_of(shape, 4, 0, {.tile = plan.tile, .late_tiles = 0})));
  CHECK(plan_for(Topology(2, 2), 16384).assignment.late == 0);
}

TEST_CASE("late clusters get no more than saves the others whole turns, and have time to spare") {
  for (const std::int64_t rows : {2048, 4096, 8192}) {
    const GemmShape shape{rows, 26624, 16384};
    const AgGemmPlan plan = ag_gemm_plan_of(shape, 4, 0, {.comm_ctas = 8});
    const std::int32_t clusters = plan.compute_ctas / plan.tile.cluster;
    REQUIRE(plan.assignment.late > 0);
    CHECK(plan.assignment.whole % clusters == 0);
    const AgGemmPlan none = ag_gemm_plan_of(
        shape, 4, 0, {.tile = plan.tile, .comm_ctas = plan.comm_ctas, .tail_tiles = 0, .late_tiles = 0});
    const std::int32_t each = plan.assignment.tiles(-1, clusters);
    CHECK(none.assignment.tiles(0, clusters) > plan.assignment.whole / clusters);
    CHECK(each <= tiles_after_pushing(shape, none) - 2);
  }
}

TEST_CASE("bands are as high as own rows where the product is long, and not so low that b is read often") {
  for (const std::int64_t rows : {4096, 8192, 16384}) {
    const GemmShape shape{rows, 26624, 16384};
    const AgGemmPlan plan = ag_gemm_plan_of(shape, 4, 0);
    CAPTURE(rows);
    CHECK(pushes_in_time(shape, plan));
    CHECK(plan.comm_ctas == 4);
  }
  // A rank has one row block of these, two of those: bands of own rows alone would read 235 MB each time.
  CHECK(ag_gemm_plan_of({1024, 14336, 8192}, 4, 0).assignment.raster.band() == 4);
  CHECK(ag_gemm_plan_of({2048, 14336, 8192}, 4, 0).assignment.raster.band() == 4);
  // 42 MB stay in L2.
  CHECK(ag_gemm_plan_of({2048, 2560, 8192}, 4, 0).assignment.raster.band() == 1);
}

TEST_CASE("four CTAs push for several neighbours only when rows are there before they are needed") {
  const GemmShape few_columns{4096, 4608, 16384};
  const AgGemmPlan plan = ag_gemm_plan_of(few_columns, 4, 0);
  CHECK(plan.comm_ctas > 4);
  CHECK(!pushes_in_time(few_columns, ag_gemm_plan_of(few_columns, 4, 0, {.comm_ctas = 4})));
  CHECK(ag_gemm_plan_of({4096, 26624, 16384}, Topology(2, 4), 0).comm_ctas > 4);
}

TEST_CASE("no plan is expected to take less than the least of it") {
  for (const GemmShape& shape : {GemmShape{128, 26624, 16384}, GemmShape{1003, 1032, 4104},
                                 GemmShape{2048, 512, 2048}, GemmShape{8192, 7168, 8192}}) {
    for (const Topology& topology : {Topology(1, 1), Topology(1, 4), Topology(2, 2)}) {
      for (const Sm90Tile tile : kSm90Tiles) {
        for (const std::int32_t late : {0, 3}) {
          const AgGemmPlan plan = ag_gemm_plan_of(shape, topology, 0, {.tile = tile, .late_tiles = late});
          CHECK(least_seconds(shape, plan) <= estimated_seconds(shape, plan) * (1 + 1e-9));
        }
      }
    }
  }
}

}  // namespace
}  // namespace mkernel::kernels

// Plans of AG+GEMM of few rows, whose sources share tiles, and that plans of many rows do not change
// unnoticed.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/ops/ag_gemm/plan.h"
#include "kernels/plan/machine.h"
#include "tests/support/require.h"

namespace mkernel::kernels::ag_gemm_few_rows {
namespace {

AgGemmPlan plan_of(const GemmShape& shape, const Topology& topology, const AgGemmOptions& options = {},
                   const Machine& machine = kH200) {
  return test::require(AgGemmPlan::make(shape, topology, 0, machine, options));
}

TEST_CASE(
    "few rows of several sources share tiles, so b is read once, and one slab, which their chunks fill") {
  for (const Topology& topology : {Topology(1, 2), Topology(1, 8), Topology(2, 2), Topology(4, 4)}) {
    const std::int64_t world = topology.world();
    for (const GemmShape& shape : {GemmShape{world - 1, 64, 72}, GemmShape{61, 7168, 8192},
                                   GemmShape{128, 2048, 24584}, GemmShape{8 * world + 3, 3584, 7168}}) {
      const AgGemmPlan plan = plan_of(shape, topology);
      const PushGatherPlan& gather = plan.gather;
      CHECK(gather.shared == (shape.m > 1));
      CHECK(plan.a_box_rows() == a_box_rows(plan.tile, plan.cluster, shape.m));
      CHECK(plan.assignment.raster.rows() == (shape.m + plan.tile.block_rows() - 1) / plan.tile.block_rows());
      std::vector<std::pair<std::uint64_t, std::uint64_t>> chunks;
      for (std::int32_t source = 0; source < gather.world; ++source) {
        CHECK(gather.chunks(source) == gather.row.parts);
        for (std::int32_t chunk = 0; chunk < gather.chunks(source); ++chunk)
          chunks.emplace_back(gather.chunk_offset(source, chunk), gather.chunk_bytes(source, chunk));
      }
      std::sort(chunks.begin(), chunks.end());
      std::uint64_t end = 0;
      for (const auto& [offset, bytes] : chunks) {
        CHECK(offset == end);
        end += bytes;
      }
      CHECK(end == gather.data_bytes());
    }
  }
}

TEST_CASE("sources share tiles only where that makes fewer blocks of at most 512 rows in all") {
  const auto shared = [](std::int64_t m, std::uint32_t world, const TileSize& tile) {
    return plan_of({m, 2048, 4096}, Topology(1, world), {.tile = tile}).gather.shared;
  };
  CHECK(shared(512, 4, Sm90Tile::k128x256));       // blocks of 256 rows, of two sources each
  CHECK_FALSE(shared(512, 4, Sm90Tile::k128x64));  // each source fills a block
  CHECK_FALSE(shared(513, 4, Sm90Tile::k128x256));
  CHECK_FALSE(shared(512, 2, Sm90Tile::k128x256));
  CHECK_FALSE(shared(300, 2, Sm90Tile::k128x64));  // more rows of a source than a block
  CHECK_FALSE(shared(64, 1, Sm90Tile::k128x64));
  CHECK_FALSE(shared(1, 4, Sm90Tile::k128x64));
}

TEST_CASE(
    "the expected time of few rows is that of reading b, of the arrival of rows, and not of every source") {
  const auto seconds = [](std::int64_t m, const Topology& topology, const Machine& machine = kH200) {
    const GemmShape shape{m, 14336, 8192};
    return estimated_seconds(shape, plan_of(shape, topology, {}, machine));
  };
  Machine slow = kH200;
  slow.memory_bytes /= 8;
  const double b = 2.0 * 14336 * 8192;  // bytes
  CHECK(seconds(64, Topology(1, 4), slow) > b / slow.memory_bytes);
  for (const std::uint32_t ranks : {2U, 4U, 8U}) {
    const double alone = seconds(64, Topology(1, 1));
    CHECK(seconds(64, Topology(1, ranks)) > alone);
    CHECK(seconds(64, Topology(1, ranks)) < 1.15 * alone + 10e-6);
    CHECK(seconds(64, Topology(1, ranks)) < seconds(256, Topology(1, ranks)));
  }
  CHECK(seconds(64, Topology(2, 2)) > seconds(64, Topology(1, 4)));
}

/// Of shapes of many rows: what the plan was when they were measured (tests/perf/results), on H200s or H100s,
/// or is since.
struct Recorded {
  GemmShape shape;
  std::uint32_t nodes, ranks;
  Sm90Tile tile;
  std::int32_t comm_ctas, compute_ctas, band, whole, late, parts;
};
using enum Sm90Tile;
const Recorded kRecordeds[] = {
    {{2048, 512, 2048}, 1, 4, k128x256, 10, 122, 4, 0, 0, 2},
    {{4096, 1024, 4096}, 1, 4, k128x128, 12, 120, 1, 80, 0, 3},
    {{8192, 2048, 8192}, 1, 4, k128x256, 10, 122, 1, 244, 0, 8},
    {{16384, 4096, 16384}, 1, 4, k128x256, 8, 124, 7, 992, 24, 8},
    {{32768, 8192, 32768}, 1, 4, k128x256, 4, 128, 8, 4096, 0, 8},
    {{2048, 1024, 2048}, 1, 2, k128x128, 12, 120, 2, 48, 0, 1},
    {{4096, 2048, 4096}, 1, 2, k128x256, 16, 116, 2, 116, 0, 2},
    {{8192, 4096, 8192}, 1, 2, k128x256, 8, 124, 7, 496, 9, 4},
    {{16384, 8192, 16384}, 1, 2, k128x256, 4, 128, 8, 2048, 0, 4},
    {{4096, 2048, 4096}, 2, 1, k128x128, 6, 126, 4, 256, 0, 3},
    {{8192, 4096, 8192}, 2, 1, k128x256, 8, 124, 7, 512, 0, 4},
    {{16384, 8192, 16384}, 2, 1, k128x256, 6, 126, 4, 2048, 0, 4},
    {{4096, 1024, 4096}, 2, 2, k128x128, 6, 126, 4, 95, 0, 3},
    {{8192, 2048, 8192}, 2, 2, k128x256, 8, 124, 7, 256, 0, 4},
    {{16384, 4096, 16384}, 2, 2, k128x256, 8, 124, 6, 1024, 0, 4},
    {{4097, 1024, 4096}, 1, 4, k128x128, 16, 116, 1, 116, 0, 2},
    {{12345, 3072, 12288}, 1, 4, k128x256, 8, 124, 7, 620, 4, 8},
    {{513, 3584, 8192}, 1, 8, k128x64, 8, 124, 4, 448, 0, 5},    // not measured so
    {{1024, 3584, 8192}, 1, 8, k128x256, 8, 124, 4, 112, 0, 8},  // not measured so
    {{1024, 14336, 8192}, 1, 4, k128x256, 8, 124, 4, 186, 9, 8},
    {{1024, 28672, 8192}, 1, 2, k128x256, 4, 128, 2, 448, 0, 4},
    {{7777, 1024, 4096}, 1, 1, k128x256, 2, 130, 8, 124, 0, 4},
    {{64, 8192, 8192}, 1, 1, k128x64, 2, 128, 1, 128, 0, 4},
    {{512, 14336, 8192}, 1, 2, k128x256, 10, 122, 2, 112, 0, 4},    // not measured so
    {{2048, 14336, 8192}, 1, 4, k128x256, 10, 122, 4, 427, 21, 8},  // not measured so
    {{4096, 26624, 16384}, 1, 4, k128x256, 4, 128, 4, 1664, 0, 8},
    {{16384, 14336, 8192}, 1, 4, k128x256, 4, 128, 8, 3584, 0, 8},
};

TEST_CASE("plans of many rows, and of a rank alone, do not change unnoticed") {
  for (const Recorded& row : kRecordeds) {
    const AgGemmPlan plan = plan_of(row.shape, Topology(row.nodes, row.ranks));
    CAPTURE(row.shape.m);
    CAPTURE(row.shape.k);
    CHECK_FALSE(plan.gather.shared);
    CHECK(plan.tile == TileSize(row.tile));
    CHECK(plan.comm_ctas == row.comm_ctas);
    CHECK(plan.compute_ctas == row.compute_ctas);
    CHECK(plan.assignment.raster.band() == row.band);
    CHECK(plan.assignment.whole == row.whole);
    CHECK(plan.assignment.late == row.late);
    CHECK(plan.gather.row.parts == row.parts);
  }
}

}  // namespace
}  // namespace mkernel::kernels::ag_gemm_few_rows

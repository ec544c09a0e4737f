// The plan of GEMM+AR: pure, so it is tested without a GPU. What it has from the reduction is
// tested in tile_reduce_plan_test.cc.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/gemm_ar/plan.h"
#include "kernels/plan/cuts.h"
#include "tests/unit/kernels/plan/plan_checks.h"

namespace mkernel::kernels {
namespace {

GemmArPlan gemm_ar_plan_of(const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                           const TileReduceOptions& options = {}) {
  auto plan = GemmArPlan::make(shape, topology, rank, kH200, options);
  REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
  return *plan;
}
GemmArPlan gemm_ar_plan_of(const GemmShape& shape, std::uint32_t world, std::uint32_t rank,
                           const TileReduceOptions& options = {}) {
  return gemm_ar_plan_of(shape, Topology(1, world), rank, options);
}

TEST_CASE("every element of c is summed by its owner, forwarded or copied from there, once, on every rank") {
  for (const Topology& topology : {Topology(1, 1), Topology(1, 2), Topology(1, 3), Topology(1, 8),
                                   Topology(2, 1), Topology(2, 2), Topology(3, 2), Topology(2, 4)}) {
    for (const GemmShape& shape : {GemmShape{1, 8, 8}, GemmShape{5, 136, 64}, GemmShape{1000, 392, 64}}) {
      for (const TileSize& tile : kTiles) {
        const GemmArPlan plan =
            gemm_ar_plan_of(shape, topology, topology.world() - 1, {.tile = tile, .to_all = false});
        std::vector<int> written(static_cast<std::size_t>(shape.m * shape.n));
        const std::int32_t sources = plan.product.reduce.sources, others = plan.product.units.others;
        const auto write = [&](std::int32_t turn, std::int32_t unit) {
          const std::int32_t owner = plan.product.owners[turn];
          const ReduceUnits::Place place = plan.product.units.place(unit);
          const std::int64_t rows = plan.product.reduce.rows_of(owner);
          const std::int64_t end = std::min(rows, place.row + plan.product.units.unit_rows);
          const std::int64_t width = tile.columns;
          for (std::int64_t row = place.row; row < end; ++row) {
            for (std::int64_t c = place.column * width; c < std::min(shape.n, (place.column + 1) * width);
                 ++c)
              ++written[static_cast<std::size_t>((plan.product.reduce.first_row(owner) + row) * shape.n + c)];
          }
        };
        for (std::int32_t unit = 0; unit < plan.sums.units; ++unit) write((others + 1) * sources - 1, unit);
        for (std::int32_t forward = 0; forward < plan.forwards(); ++forward)
          write((forward % others + 1) * sources - 1, forward / others);
        const std::int32_t owners = (sources - 1) * (others + 1);
        for (std::int32_t copy = 0; copy < plan.copies(); ++copy)
          write(copy % owners + copy % owners / (sources - 1), copy / owners);
        CHECK(std::all_of(written.begin(), written.end(), [](int times) { return times == 1; }));
      }
    }
  }
}

TEST_CASE("partials and finished sums of a rank cross to every other node once") {
  const GemmArPlan plan = gemm_ar_plan_of({6144, 8192, 2048}, Topology(3, 2), 2);
  CHECK(plan.wire_bytes() == 2 * (2 * 1024 * 8192 * 2));
  CHECK(gemm_ar_plan_of({6144, 8192, 2048}, 6, 2).wire_bytes() == 0);
}

TEST_CASE("a unit means the same rows on every rank, also where owners have unequal numbers of them") {
  const GemmShape shape{1025, 392, 64};  // 257 rows for the last owner: a block more
  const GemmArPlan first = gemm_ar_plan_of(shape, 4, 0, {.tile = Sm90Tile::k128x64});
  for (const std::uint32_t rank : {1U, 2U, 3U}) {
    const GemmArPlan other = gemm_ar_plan_of(shape, 4, rank, {.tile = Sm90Tile::k128x64});
    REQUIRE(other.sums.units == first.sums.units);
    CHECK(other.word_bytes() == first.word_bytes());
    CHECK(other.data_bytes() == first.data_bytes());
    for (std::int32_t unit = 0; unit < first.sums.units; ++unit) {
      const ReduceUnits::Place one = first.product.units.place(unit), two = other.product.units.place(unit);
      CHECK((one.row == two.row && one.column == two.column));
    }
  }
}

TEST_CASE("sums lie behind the reduction's part and do not overlap; counts only grow") {
  for (const std::uint32_t world : {1U, 3U, 8U}) {
    const GemmArPlan plan = gemm_ar_plan_of({1003, 72, 64}, world, 0);
    const PushSumsPlan& sums = plan.sums;
    const auto owners = static_cast<std::int32_t>(world);
    CHECK(sums.begin % 128 == 0);
    CHECK(sums.begin >= plan.product.data_bytes());
    CHECK(sums.summed_offset(0) == plan.product.word_bytes());
    CHECK(sums.summed_offset(1) - sums.summed_offset(0) == static_cast<std::uint64_t>(sums.units) * 8);
    std::uint64_t end = sums.sums_offset(0);
    CHECK(end == sums.begin);
    CHECK(plan.word_bytes() == sums.summed_offset(owners));
    for (std::int32_t owner = 0; owner < owners; ++owner) {
      CHECK(sums.sums_offset(owner) == end);
      end += static_cast<std::uint64_t>(sums.units) * PushSumsPlan::kUnitBytes;
    }
    CHECK(end == plan.data_bytes());
    CHECK(PushSumsPlan::count(0) == 1);
    CHECK(PushSumsPlan::count(5) == 6);
  }
}

TEST_CASE(
    "CTAs that sum and push: few while tiles keep the links busy, else as many as sums need and tiles "
    "leave") {
  const auto reduce_ctas = [](std::int64_t size) {
    return gemm_ar_plan_of({size, size, size / 4}, 4, 0).product.reduce_ctas;
  };
  CHECK(reduce_ctas(2048) == 4);
  CHECK(reduce_ctas(4096) == 4);
  CHECK(reduce_ctas(8192) == 24);
  CHECK(reduce_ctas(16384) == 16);
  CHECK(reduce_ctas(32768) == 8);
  // One wave of 64 clusters: CTAs that only push would make it two.
  CHECK(gemm_ar_plan_of({2048, 2048, 8192}, 4, 0, {.tile = Sm90Tile::k128x256}).product.reduce_ctas == 4);
  CHECK(gemm_ar_plan_of({8192, 8192, 2048}, 1, 0).product.reduce_ctas == 2);  // nothing to push
  // A wire that waits for sums all along.
  CHECK(gemm_ar_plan_of({8192, 8192, 2048}, Topology(2, 1), 0).product.reduce_ctas == 24);
  // The links are what bounds 8192^2 here, and do not in GEMM+RS.
  CHECK(gemm_ar_plan_of({8192, 8192, 2048}, 4, 0).product.tile == Sm90Tile::k128x128);
  CHECK(gemm_ar_plan_of({16384, 16384, 4096}, 4, 0).product.tile == Sm90Tile::k128x256);
}

TEST_CASE("the grid fits the device, in whole clusters") {
  for (const std::int64_t size : {8, 512, 2048, 8192, 32768}) {
    for (const std::uint32_t world : {1U, 2U, 4U, 8U}) {
      const TileReducePlan plan = gemm_ar_plan_of({size, size, size / 4 / 8 * 8 + 8}, world, 0).product;
      check_grid(plan.reduce_ctas, plan.compute_ctas, plan.tile);
    }
  }
}

TEST_CASE("what cannot run is refused in the operation's name") {
  const auto refused = GemmArPlan::make({64, 12, 64}, Topology(1, 4), 0, kH200).status();
  CHECK(refused.code() == StatusCode::kInvalidArgument);
  CHECK_MESSAGE(refused.text().find("gemm_ar: n = 12, must be a multiple of 8") != std::string::npos,
                refused.text());
}

}  // namespace
}  // namespace mkernel::kernels

// The cuda executor's plan of a product whose tiles are summed over ranks: pure, so it is tested without a
// GPU.
#include "kernels/ops/exchange/tile_reduce_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/schedule/tiles.h"

namespace mkernel::kernels {
namespace {

constexpr std::int32_t kSms = 132;

TileReducePlan plan_of(const GemmShape& shape, std::uint32_t world, std::uint32_t rank,
                       const TileReduceOptions& options = {}) {
  auto plan = TileReducePlan::make(OpKind::kGemmRs, shape, Topology(1, world), rank, kSms, options);
  REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
  return *plan;
}

using Counts = std::vector<int>;

/// Adds one to rows [begin, end) of a tile's columns.
void count(Counts& times, const GemmShape& shape, std::int64_t begin, std::int64_t end, std::int64_t column,
           std::int64_t width) {
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t c = column * width; c < std::min(shape.n, (column + 1) * width); ++c)
      ++times[static_cast<std::size_t>(row * shape.n + c)];
  }
}

bool all_ones(const Counts& times) {
  return std::all_of(times.begin(), times.end(), [](int n) { return n == 1; });
}

TEST_CASE("every element is computed by one tile and summed in one unit, on every rank of any world") {
  for (const std::uint32_t world : {1U, 2U, 3U, 4U, 8U}) {
    for (const GemmShape& shape :
         {GemmShape{1, 8, 8}, GemmShape{5, 136, 64}, GemmShape{1000, 392, 64}, GemmShape{2049, 8, 16}}) {
      for (const Sm90Tile tile : kSm90Tiles) {
        Counts summed(static_cast<std::size_t>(shape.m * shape.n));
        for (std::uint32_t rank = 0; rank < world; ++rank) {
          const TileReducePlan plan = plan_of(shape, world, rank, {.tile = tile});
          const PushReducePlan& reduce = plan.reduce;
          const std::int64_t height = tile_rows(tile) * tile_cluster(tile), width = tile_columns(tile);
          Counts computed(summed.size());
          for (std::int32_t index = 0; index < plan.raster.tiles(); ++index) {
            const RasterPlace place = plan.raster.place(index);
            const OwnerSteps::Place step = plan.steps.place(place.row);
            const std::int64_t first = reduce.first_row(step.owner), rows = reduce.rows_of(step.owner);
            count(computed, shape, first + std::min(rows, step.block * height),
                  first + std::min(rows, (step.block + 1) * height), place.column, width);
          }
          CHECK(all_ones(computed));
          const std::int64_t first = reduce.first_row(plan.steps.rank),
                             rows = reduce.rows_of(plan.steps.rank);
          for (std::int32_t unit = 0; unit < plan.units.units(); ++unit) {
            const ReduceUnits::Place place = plan.units.place(unit);
            if (place.row < rows) CHECK(place.row_tile < reduce.row_tiles());
            CHECK(place.row / tile_rows(tile) == place.row_tile);
            count(summed, shape, first + std::min(rows, place.row),
                  first + std::min(rows, place.row + plan.units.unit_rows), place.column, width);
          }
        }
        CHECK(all_ones(summed));
      }
    }
  }
}

TEST_CASE("owners take turns from the next rank on, the own block last; sums follow in that order") {
  const TileReducePlan plan = plan_of({8192, 8192, 2048}, 4, 2, {.tile = Sm90Tile::k128x256});
  REQUIRE(plan.steps.blocks == 8);
  REQUIRE(plan.steps.steps() == 32);
  for (std::int32_t step = 0; step < 32; ++step) {
    CHECK(plan.steps.place(step).owner == (2 + 1 + step) % 4);
    CHECK(plan.steps.place(step).block == step / 4);
  }
  // A band is whole turns, and as many row blocks of sums.
  CHECK(plan.raster.band % 4 == 0);
  CHECK(plan.units.raster.band == plan.raster.band / 4);
  CHECK(plan.units.raster.rows == 8);
  CHECK(plan.units.raster.columns == plan.raster.columns);
}

TEST_CASE("no wave of tiles is lost to the CTAs that sum") {
  // 32 x 32 cluster tiles: 16 waves on 64 clusters as on the 65 that two summing CTAs leave.
  const TileReducePlan plan = plan_of({8192, 8192, 2048}, 4, 0, {.tile = Sm90Tile::k128x256});
  CHECK(plan.reduce_ctas == 4);
  CHECK(plan.compute_ctas == 128);
  CHECK(plan_of({8192, 8192, 2048}, 4, 0, {.tile = Sm90Tile::k128x256, .reduce_ctas = 10}).reduce_ctas == 10);
}

TEST_CASE("where the links are slower than the product, tiles are smaller") {
  CHECK(plan_of({4096, 4096, 1024}, 4, 0).tile == Sm90Tile::k128x128);
  CHECK(plan_of({4096, 4096, 1024}, 1, 0).tile == Sm90Tile::k128x256);  // nothing to send
  CHECK(plan_of({8192, 8192, 2048}, 4, 0).tile == Sm90Tile::k128x256);
}

TEST_CASE("the workspace holds words and slots of two parities that do not overlap, and counts only grow") {
  for (const std::uint32_t world : {1U, 3U, 8U}) {
    const PushReducePlan reduce = plan_of({1003, 72, 64}, world, 0).reduce;
    const auto sources = static_cast<std::int32_t>(world);
    CHECK(reduce.ready_offset(1) ==
          static_cast<std::uint64_t>(reduce.row_tiles() * reduce.column_tiles() * 8));
    CHECK(reduce.ready_offset(sources) <= reduce.slot_offset(0, 0));
    std::uint64_t end = reduce.slot_offset(0, 0);
    for (const std::uint64_t epoch : {0U, 1U}) {
      for (std::int32_t source = 0; source < sources; ++source) {
        CHECK(reduce.slot_offset(epoch, source) == end);
        CHECK(reduce.slot_offset(epoch + 2, source) == end);
        CHECK(end % 128 == 0);
        CHECK(reduce.slot_bytes() >= static_cast<std::uint64_t>(reduce.rows_of(source) * 72 * 2));
        end += reduce.slot_bytes();
      }
    }
    CHECK(end == reduce.workspace_bytes());
    CHECK(PushReducePlan::count(0) == 1);
    CHECK(PushReducePlan::count(5) == 6);
  }
}

TEST_CASE("the grid fits the device, in whole clusters") {
  for (const std::int64_t size : {8, 512, 2048, 8192, 32768}) {
    for (const std::uint32_t world : {1U, 2U, 4U, 8U}) {
      const TileReducePlan plan = plan_of({size, size, size / 4 / 8 * 8 + 8}, world, 0);
      CHECK(plan.reduce_ctas % 2 == 0);
      CHECK(plan.reduce_ctas >= 2);
      CHECK(plan.compute_ctas >= tile_cluster(plan.tile));
      CHECK(plan.compute_ctas % tile_cluster(plan.tile) == 0);
      CHECK(plan.reduce_ctas + plan.compute_ctas <= kSms);
    }
  }
}

TEST_CASE("what cannot run is refused by name, value and limit") {
  const auto refusal = [](const GemmShape& shape, const Topology& topology,
                          const TileReduceOptions& options = {}) {
    return TileReducePlan::make(OpKind::kGemmRs, shape, topology, 0, kSms, options).status();
  };
  const Topology node(1, 4);
  for (const auto& [shape, text] : {std::pair{GemmShape{64, 12, 64}, "n = 12, must be a multiple of 8"},
                                    std::pair{GemmShape{64, 64, 9}, "k = 9, must be a multiple of 8"},
                                    std::pair{GemmShape{0, 64, 64}, "m = 0"}}) {
    const Status status = refusal(shape, node);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK_MESSAGE(status.text().find(text) != std::string::npos, status.text());
  }
  for (const std::int32_t reduce_ctas : {-2, 3, 68}) {
    const Status status = refusal({64, 64, 64}, node, {.reduce_ctas = reduce_ctas});
    CHECK(status.text().find("reduce_ctas = " + std::to_string(reduce_ctas) + ", must be even, 0..66") !=
          std::string::npos);
  }
  CHECK(refusal({64, 64, 64}, Topology(2, 2)).code() == StatusCode::kUnimplemented);
  CHECK(refusal({64, 64, 64}, Topology(1, 17)).text().find("world = 17, must be 1..16") != std::string::npos);
}

}  // namespace
}  // namespace mkernel::kernels

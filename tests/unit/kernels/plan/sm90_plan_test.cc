// The tiles of the cuda executor's product: every one once, whatever the shape.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <variant>
#include <vector>

#include "kernels/plan/machine.h"
#include "kernels/plan/raster.h"
#include "kernels/plan/sm90_skinny.h"
#include "kernels/plan/sm90_tile.h"
#include "kernels/plan/tile_assignment.h"

using namespace mkernel;
using namespace mkernel::kernels;

TEST_CASE("raster: every place once, bands from the top, columns from the left inside a band") {
  for (const int rows : {1, 2, 3, 7, 16}) {
    for (const int columns : {1, 2, 5, 16}) {
      for (const int band : {1, 2, 3, 8, 100}) {
        const Raster raster{rows, columns, band};
        std::vector<int> seen(static_cast<std::size_t>(rows * columns));
        RasterPlace before{};
        for (int index = 0; index < raster.tiles(); ++index) {
          const RasterPlace place = raster.place(index);
          REQUIRE(place.row >= 0);
          REQUIRE(place.row < rows);
          REQUIRE(place.column >= 0);
          REQUIRE(place.column < columns);
          ++seen[static_cast<std::size_t>(place.row * columns + place.column)];
          CHECK(place.row / band >= before.row / band);
          if (place.row / band == before.row / band) CHECK(place.column >= before.column);
          before = place;
        }
        CHECK(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
      }
    }
  }
}

TEST_CASE("assignment: every whole tile and every narrow one once, shares that differ by one at most") {
  constexpr int kParts = 4;
  for (const int clusters : {1, 3, 62, 66}) {
    for (const int columns : {1, 4, 9}) {
      const Raster raster{17, columns, 3};
      for (const int whole : {0, 1, raster.tiles() / clusters * clusters, raster.tiles()}) {
        if (whole > raster.tiles()) continue;
        const TileAssignment assignment{raster, whole};
        std::vector<int> seen(static_cast<std::size_t>(raster.tiles() * kParts));
        int fewest = raster.tiles() * kParts, most = 0;
        for (int cluster = 0; cluster < clusters; ++cluster) {
          const auto at = [&](const RasterPlace& tile, int part) -> int& {
            return seen[static_cast<std::size_t>((tile.row * columns + tile.column) * kParts + part)];
          };
          for (int i = 0; i < assignment.tiles(cluster, clusters); ++i) {
            for (int part = 0; part < kParts; ++part) ++at(assignment.place(i, cluster, clusters).tile, part);
          }
          const int narrow = assignment.tail_tiles(cluster, clusters, kParts);
          for (int i = 0; i < narrow; ++i) {
            const TileAssignment::Place place = assignment.tail_place(i, cluster, clusters, kParts);
            ++at(place.tile, place.part);
          }
          fewest = std::min(fewest, narrow);
          most = std::max(most, narrow);
        }
        CHECK(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
        CHECK(most - fewest <= 1);
      }
    }
  }
}

TEST_CASE("assignment: late clusters take the tiles between the whole ones and the tail") {
  const Raster raster{17, 4, 3};
  const TileAssignment assignment{.raster = raster, .whole = 50, .late = 8, .late_clusters = 3};
  constexpr int kClusters = 7, kParts = 2;
  const auto number = [&](const RasterPlace& place) {
    for (int i = 0; i < raster.tiles(); ++i) {
      if (raster.place(i).row == place.row && raster.place(i).column == place.column) return i;
    }
    return -1;
  };
  std::vector<int> late;
  for (int cluster = -3; cluster < 0; ++cluster) {
    CHECK(assignment.tail_tiles(cluster, kClusters, kParts) == 0);
    for (int i = 0; i < assignment.tiles(cluster, kClusters); ++i)
      late.push_back(number(assignment.place(i, cluster, kClusters).tile));
  }
  std::sort(late.begin(), late.end());
  CHECK(late == std::vector{50, 51, 52, 53, 54, 55, 56, 57});
  CHECK(assignment.tiles(-1, kClusters) == 3);
  CHECK(assignment.tiles(-3, kClusters) == 2);
  int narrow = 0;
  for (int cluster = 0; cluster < kClusters; ++cluster) {
    for (int i = 0; i < assignment.tail_tiles(cluster, kClusters, kParts); ++i, ++narrow)
      CHECK(number(assignment.tail_place(i, cluster, kClusters, kParts).tile) >= 58);
  }
  CHECK(narrow == 10 * kParts);
}

TEST_CASE("plan: what is left over after whole waves is cut, when that is faster") {
  for (const GemmShape& shape :
       {GemmShape{12345, 1024, 4096}, GemmShape{8192, 8192, 8192}, GemmShape{64, 64, 64}}) {
    for (const int sms : {1, 2, 78, 132}) {
      const Sm90Plan plan = plan_sm90_any_cluster(shape, kH200.with_sms(sms));
      CHECK(plan.whole >= 0);
      CHECK(plan.whole <= plan.raster.tiles());
      if (!has_tail(plan.tile)) CHECK(plan.whole == plan.raster.tiles());
      CHECK(plan_sm90(shape, kH200.with_sms(sms)).whole ==
            plan_sm90(shape, kH200.with_sms(sms)).raster.tiles());
    }
  }
  const Machine machine = kH200.with_sms(124);
  const Sm90Plan plan = plan_sm90({8192, 2048, 8192}, machine, Sm90Tile::k128x256);
  CHECK(with_best_tail({8192, 2048, 8192}, machine, plan).whole == 248);  // of 256, on 62 clusters
}

TEST_CASE("plan: covers the matrix, uses no more CTAs than there are SMs, all clusters whole") {
  for (const int sms : {1, 2, 78, 114, 132}) {
    for (const std::int64_t m : {1, 128, 1000, 4097, 16384}) {
      for (const std::int64_t n : {8, 384, 1024, 16384}) {
        for (const Sm90Tile tile : kSm90Tiles) {
          for (const Sm90Cluster shape_of : {Sm90Cluster::kStacked, Sm90Cluster::kSideBySide}) {
            const Sm90Plan plan = plan_sm90({m, n, 4096}, kH200.with_sms(sms), tile, shape_of);
            const int rows = cluster_rows(tile, shape_of) * tile_rows(tile);
            const int columns = cluster_columns(shape_of) * tile_columns(tile);
            const int cluster = cluster_rows(tile, shape_of) * cluster_columns(shape_of);
            CHECK(plan.cluster == shape_of);
            CHECK(std::int64_t{plan.raster.rows()} * rows >= m);
            CHECK(std::int64_t{plan.raster.rows() - 1} * rows < m);
            CHECK(std::int64_t{plan.raster.columns()} * columns >= n);
            CHECK(std::int64_t{plan.raster.columns() - 1} * columns < n);
            CHECK(plan.raster.band() >= 1);
            CHECK(plan.ctas >= cluster);
            CHECK(plan.ctas % cluster == 0);
            CHECK(plan.ctas <= std::max(sms, cluster));
            CHECK(plan.ctas <= plan.raster.tiles() * cluster);
          }
        }
      }
    }
  }
}

TEST_CASE("plan: large products get the largest tile, small ones are spread over the SMs") {
  for (const std::int64_t size : {4096, 8192, 16384}) {
    CHECK(plan_sm90({size, size, size}, kH200).tile == Sm90Tile::k128x256);
    CHECK(plan_sm90({size, size / 4, size}, kH200).tile == Sm90Tile::k128x256);
    CHECK(plan_sm90({size, size, size / 4}, kH200).tile == Sm90Tile::k128x256);
  }
  CHECK(plan_sm90_any_cluster({2048, 512, 2048}, kH200).ctas >= 100);
  CHECK(plan_sm90({8192, 128, 8192}, kH200).tile.columns <= 128);
}

TEST_CASE("plan: one row more than one wave of tiles holds does not cost a second wave") {
  const Sm90Plan plan = plan_sm90_any_cluster({4097, 1024, 4096}, kH200);
  CHECK(plan.raster.tiles() * 2 <= 132);
  CHECK(plan_sm90({4097, 1024, 4096}, kH200).cluster == Sm90Cluster::kStacked);
}

TEST_CASE("plan: a single wave of small tiles is walked in low bands, else in bands as high as wide") {
  const Sm90Plan one = plan_sm90_any_cluster({1000, 1024, 4096}, kH200);
  CHECK(one.tile == Sm90Tile::k128x64);
  CHECK(one.cluster == Sm90Cluster::kSideBySide);
  CHECK(one.raster.tiles() <= 66);
  CHECK(one.raster.band() == 3);  // of nine clusters of 128 x 128, a GPC's
  CHECK(plan_sm90_any_cluster({128, 8192, 4096}, kH200).raster.band() == 1);
  CHECK(plan_sm90_any_cluster({4096, 1024, 4096}, kH200).raster.band() == 8);
  CHECK(plan_sm90_any_cluster({8192, 8192, 8192}, kH200).raster.band() == 8);
}

TEST_CASE("the CTAs of a cluster load every box of a shared operand once") {
  for (const int parts : {1, 2}) {
    for (const int boxes : {1, 2, 4}) {
      const Sm90Boxes shared{boxes, parts};
      std::vector<int> loads(boxes, 0);
      for (int part = 0; part < parts; ++part) {
        for (int i = 0; i < shared.each() && !shared.none(part); ++i) ++loads.at(shared.first(part) + i);
      }
      CHECK(loads == std::vector<int>(boxes, 1));
    }
  }
}

TEST_CASE("boxes of a hold the rows that there are, and halves of them begin where the swizzle does") {
  for (const Sm90Tile tile : kSm90Tiles) {
    for (std::int64_t m = 1; m <= 300; ++m) {
      CHECK(a_box_rows(tile, Sm90Cluster::kStacked, m) == std::min<std::int64_t>(m, tile_rows(tile)));
      const std::int32_t half = a_box_rows(tile, Sm90Cluster::kSideBySide, m);
      CHECK(half % 8 == 0);
      CHECK(2 * half <= tile_rows(tile));
      CHECK(2 * half >= std::min<std::int64_t>(m, tile_rows(tile)));
      CHECK(2 * half < m + 16);
    }
    CHECK(a_box_rows(tile) == tile_rows(tile));
    const bool large = tile_rows(tile) * tile_columns(tile) > 128 * 128;
    CHECK(plan_sm90({40, 4096, 64}, kH200, tile).a_box_rows(40) == (large ? tile_rows(tile) : 40));
  }
}

TEST_CASE("few rows: tiles have all rows, every CTA has a step along k, and two CTAs fit") {
  for (const std::int32_t rows : kSkinnyRows) {
    CHECK(skinny_stages(rows) >= 3);
    CHECK((skinny_stages(rows) * skinny_stage_bytes(rows) + 2048) * kSkinnyCtasPerSm <= 228 * 1024);
  }
  for (const int sms : {1, 32, 78, 132}) {
    for (const std::int64_t m : {1, 16, 17, 33, 64}) {
      for (const std::int64_t n : {8, 136, 2048, 8192, 28672}) {
        for (const std::int64_t k : {8, 200, 2048, 14336}) {
          const auto plan = plan_sm90_skinny({m, n, k}, kH200.with_sms(sms));
          REQUIRE(plan);
          CHECK(plan->rows >= m);
          CHECK(std::find(std::begin(kSkinnyRows), std::end(kSkinnyRows), plan->rows) !=
                std::end(kSkinnyRows));
          CHECK((plan->rows == 16 || plan->rows < 2 * m));
          CHECK(std::has_single_bit(static_cast<std::uint32_t>(plan->split)));
          CHECK(plan->split <= kSkinnyMostSplit);
          CHECK((plan->split == 1 || plan->split * kSm90TileK < k + kSm90TileK));
        }
      }
    }
  }
  CHECK(!plan_sm90_skinny({kSkinnyMostRows + 1, 4096, 4096}, kH200));
}

TEST_CASE("few rows: k is split where there are few columns, and memory is what bounds") {
  const auto split = [](const GemmShape& shape) { return plan_sm90_skinny(shape, kH200)->split; };
  CHECK(split({16, 4096, 4096}) == 4);
  CHECK(split({64, 2048, 7168}) == 8);
  CHECK(split({64, 8192, 14336}) == 2);
  CHECK(split({64, 28672, 8192}) == 1);
  CHECK(split({16, 4096, 64}) == 1);
  for (const GemmShape& shape :
       {GemmShape{16, 4096, 4096}, GemmShape{64, 2048, 7168}, GemmShape{64, 8192, 14336}}) {
    const double reading = 2.0 * static_cast<double>(shape.n * shape.k) / kH200.memory_bytes;
    const double seconds = estimated_seconds(shape, kH200, *plan_sm90_skinny(shape, kH200));
    CHECK(seconds > reading);
    CHECK(seconds < reading * 1.1 + 2.3e-6);
  }
}

TEST_CASE("plan: the body for few rows has all that it takes, the other one all other shapes") {
  const auto is_skinny = [](const GemmShape& shape) {
    return std::holds_alternative<Sm90SkinnyPlan>(plan_sm90_local(shape, kH200));
  };
  for (const std::int64_t m : {1, 7, 16, 64}) {
    CHECK(is_skinny({m, 4096, 4096}));
    CHECK(is_skinny({m, 2048, 7168}));
    CHECK(is_skinny({m, 8192, 14336}));
  }
  for (const std::int64_t m : {65, 512, 2048, 8192}) CHECK(!is_skinny({m, 4096, 4096}));
}

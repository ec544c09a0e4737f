// GEMM+RS on the host: the whole kernel, with tiles of each owner's own and with tiles that owners share.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "tests/unit/kernels/roles/reduce_ranks.h"

namespace mkernel::test {
namespace {

constexpr OpKind kRs = OpKind::kGemmRs;

TEST_CASE("gemm_rs: owners with many rows") {
  for (const Sm90Tile tile :
       {Sm90Tile::k128x64, Sm90Tile::k128x128, Sm90Tile::k128x256, Sm90Tile::k256x128}) {
    CAPTURE(tile_columns(tile));
    check_reduce<kRs>({300, 136, 72}, {1, 2}, {.tile = tile}, false);
  }
  check_reduce<kRs>({1, 136, 72}, {1, 2}, {.tile = Sm90Tile::k256x128}, false);
  check_reduce<kRs>({70, 72, 72, DataType::kF16, Layout::kColumnMajor}, {1, 1}, {.tile = Sm90Tile::k128x128},
                    false);
}

TEST_CASE("gemm_rs: links that are modelled carry the partial tiles of other owners") {
  check_reduce<kRs>({480, 128, 72}, {1, 3}, {.tile = Sm90Tile::k128x64, .link_gbytes = 0.02}, false);
}

TEST_CASE("gemm_rs: owners that share tiles, some without rows, the last tile ragged") {
  for (const Sm90Tile tile : {Sm90Tile::k128x64, Sm90Tile::k128x128, Sm90Tile::k128x256}) {
    for (const std::int64_t m : {1, 64, 150}) {
      const std::string what = std::to_string(tile_columns(tile)) + " columns, m = " + std::to_string(m);
      CAPTURE(what);
      check_reduce<kRs>({m, 136, 72}, {1, 2}, {.tile = tile}, true);
    }
  }
  // Owners begin and end within a piece of 64 rows; three groups of owners are two blocks of a cluster.
  check_reduce<kRs>({200, 136, 72, DataType::kF16, Layout::kColumnMajor}, {1, 4}, {.tile = Sm90Tile::k128x64},
                    true);
  check_reduce<kRs>({2, 136, 72, DataType::kF16, Layout::kColumnMajor}, {1, 4}, {.tile = Sm90Tile::k128x128},
                    true);
  check_reduce<kRs>({300, 72, 72}, {1, 5}, {.tile = Sm90Tile::k128x128}, true);
}

TEST_CASE("gemm_rs: owners that share tiles do with words where marks would be too large, or waves many") {
  for (const std::int64_t m : {2, 150}) {
    CAPTURE(m);
    check_reduce<kRs>({m, 136, 72}, {1, 3}, {.tile = Sm90Tile::k128x64}, true, Marks::kNone);
  }
}

TEST_CASE("gemm_rs: a rank whose partials do not come is named, and nothing is launched after that") {
  for (const Marks marks : {Marks::kAll, Marks::kNone}) {
    ReduceRanks<kRs> world({70, 136, 72}, {1, 3}, {.tile = Sm90Tile::k128x64}, marks);
    REQUIRE(world.has_marks() == (marks == Marks::kAll));
    world.check(0);
    world.check_missing(1, 2);
  }
}

TEST_CASE("gemm_rs: boxes of a hold the rows that there are") {
  constexpr Sm90Tile kTiles[] = {Sm90Tile::k128x64, Sm90Tile::k128x128, Sm90Tile::k128x256};
  int turn = 0;
  for (const std::int64_t m : {1, 16, 63, 64, 65, 127, 128}) {
    const GemmShape shape =
        turn < 2 ? GemmShape{m, 136, 200, DataType::kF16, Layout::kColumnMajor} : GemmShape{m, 136, 200};
    check_reduce<kRs>(shape, {1, 4}, {.tile = kTiles[turn++ % 3]}, true);
  }
  check_reduce<kRs>({33, 72, 200}, {2, 2}, {.tile = Sm90Tile::k128x128}, true);
}

TEST_CASE("gemm_rs: owners of several nodes share tiles") {
  check_reduce<kRs>({70, 136, 72}, {2, 2}, {.tile = Sm90Tile::k128x64}, true);
  check_reduce<kRs>({2, 72, 72, DataType::kF16, Layout::kColumnMajor}, {3, 1}, {.tile = Sm90Tile::k128x128},
                    true);
  check_reduce<kRs>({300, 72, 72}, {2, 2}, {.tile = Sm90Tile::k128x128}, true);
  check_reduce<kRs>({300, 72, 72}, {2, 1}, {.tile = Sm90Tile::k128x64}, false);
}

TEST_CASE("gemm_rs: of two launches at a time one fails and says so") {
  ReduceRanks<kRs> rank({300, 136, 72}, {1, 1}, {.tile = Sm90Tile::k128x64});
  rank.check(0);
  rank.check_two(1);
}

}  // namespace
}  // namespace mkernel::test

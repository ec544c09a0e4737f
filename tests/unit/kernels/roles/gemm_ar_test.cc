// GEMM+AR on the host: the whole kernel, with finished sums that owners send on and with partials that go to
// all.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/unit/kernels/roles/reduce_ranks.h"

namespace mkernel::test {
namespace {

constexpr OpKind kAr = OpKind::kGemmAr;

TEST_CASE("gemm_ar: owners with many rows") {
  for (const Sm90Tile tile : {Sm90Tile::k128x64, Sm90Tile::k128x128}) {
    CAPTURE(tile_columns(tile));
    check_reduce<kAr>({300, 136, 72}, {1, 2}, {.tile = tile}, false);
  }
}

TEST_CASE("gemm_ar: links that are modelled carry the partial tiles of other owners, and own sums") {
  check_reduce<kAr>({480, 128, 72}, {1, 3}, {.tile = Sm90Tile::k128x64, .link_gbytes = 0.02}, false);
}

TEST_CASE("gemm_ar: owners that share tiles send finished sums to everybody") {
  for (const Sm90Tile tile : {Sm90Tile::k128x64, Sm90Tile::k128x128, Sm90Tile::k128x256}) {
    for (const std::int64_t m : {1, 150}) {
      const std::string what = std::to_string(tile_columns(tile)) + " columns, m = " + std::to_string(m);
      CAPTURE(what);
      check_reduce<kAr>({m, 136, 72}, {1, 2}, {.tile = tile, .to_all = false}, true);
    }
  }
  check_reduce<kAr>({200, 136, 72, DataType::kF16, Layout::kColumnMajor}, {1, 4},
                    {.tile = Sm90Tile::k128x64, .to_all = false}, true);
  check_reduce<kAr>({300, 72, 72}, {1, 5}, {.tile = Sm90Tile::k128x128, .to_all = false}, true);
  // Owners without rows, and one whose rows end within a unit.
  check_reduce<kAr>({3, 136, 72}, {1, 5}, {.tile = Sm90Tile::k128x64, .to_all = false}, true);
  check_reduce<kAr>({67, 136, 72, DataType::kF16, Layout::kColumnMajor}, {1, 2},
                    {.tile = Sm90Tile::k128x64, .to_all = false}, true);
}

TEST_CASE("gemm_ar: owners that share tiles do with words where marks would be too large, or waves many") {
  for (const Marks marks : {Marks::kNone, Marks::kSums}) {
    check_reduce<kAr>({150, 136, 72}, {1, 3}, {.tile = Sm90Tile::k128x64, .to_all = false}, true, marks);
    check_reduce<kAr>({5, 136, 72, DataType::kF16, Layout::kColumnMajor}, {1, 2},
                      {.tile = Sm90Tile::k128x128, .to_all = false}, true, marks);
  }
  // Owners without rows.
  check_reduce<kAr>({3, 136, 72}, {1, 5}, {.tile = Sm90Tile::k128x64, .to_all = false}, true, Marks::kSums);
}

TEST_CASE("gemm_ar: every rank sums all rows for itself") {
  for (const Sm90Tile tile : {Sm90Tile::k128x64, Sm90Tile::k128x128, Sm90Tile::k128x256}) {
    for (const std::int64_t m : {1, 70, 150}) {
      const std::string what = std::to_string(tile_columns(tile)) + " columns, m = " + std::to_string(m);
      CAPTURE(what);
      check_reduce<kAr>({m, 136, 72}, {1, 2}, {.tile = tile, .to_all = true}, true);
    }
  }
  check_reduce<kAr>({140, 136, 72, DataType::kF16, Layout::kColumnMajor}, {1, 4},
                    {.tile = Sm90Tile::k128x64, .to_all = true}, true);
}

TEST_CASE("gemm_ar: any number of ranks sums all rows for itself, in one round of slots or several") {
  for (const std::uint32_t ranks : {3U, 5U, 8U}) {
    CAPTURE(ranks);
    check_reduce<kAr>({5, 72, 72}, {1, ranks}, {.tile = Sm90Tile::k128x64, .to_all = true}, true);
  }
  check_reduce<kAr>({33, 200, 72, DataType::kF16, Layout::kColumnMajor}, {1, 6},
                    {.tile = Sm90Tile::k128x128, .to_all = true}, true);
}

TEST_CASE("gemm_ar: a mark is found in every place of a piece, and nothing else is one") {
  std::uint16_t elements[8] = {};
  const auto found = [&] {
    uint4 piece;
    std::memcpy(&piece, elements, sizeof piece);
    return holds_mark(piece);
  };
  for (const std::uint16_t others : {0x0000, 0x7FFF, 0xFFFE, 0xFEFF, 0x8000, 0x0001}) {
    std::fill_n(elements, 8, others);
    CHECK_FALSE(found());
    for (std::uint16_t& element : elements) {
      element = PushReducePlan::kMark;
      CHECK(found());
      element = others;
    }
  }
}

/// Of every rank row 0 has a NaN of a sign and with all bits set, row 1 an infinity, row 2 infinities of both
/// signs in turns of the ranks, row 3 negative zeros, row 4 zeros.
TEST_CASE("gemm_ar: no value is taken for one that has not come") {
  constexpr std::int64_t kK = 72;
  for (const GemmShape& shape :
       {GemmShape{6, 136, kK}, GemmShape{6, 136, kK, DataType::kF16, Layout::kColumnMajor}}) {
    const std::uint16_t infinity = shape.dtype == DataType::kBf16 ? 0x7F80 : 0x7C00;
    for (const bool to_all : {true, false}) {
      ReduceRanks<kAr> world(shape, {1, 3}, {.tile = Sm90Tile::k128x64, .to_all = to_all});
      REQUIRE(world.has_marks());
      for (std::uint64_t launch = 0; launch < 3; ++launch) {
        world.check(launch, [&](std::size_t rank, auto& a) {
          a[7] = rank == 1 ? 0x7FFF : 0xFFFF;
          a[kK + 3] = infinity;
          a[2 * kK + 5] = rank % 2 == 0 ? infinity : infinity | 0x8000;
          std::fill_n(a.begin() + 3 * kK, kK, std::uint16_t{0x8000});
          std::fill_n(a.begin() + 4 * kK, kK, std::uint16_t{0});
        });
      }
    }
  }
}

TEST_CASE("gemm_ar: a rank whose partials do not come is named, and nothing is launched after that") {
  for (const bool to_all : {true, false}) {
    for (const Marks marks : {Marks::kAll, Marks::kSums}) {
      ReduceRanks<kAr> world({70, 136, 72}, {1, 3}, {.tile = Sm90Tile::k128x64, .to_all = to_all}, marks);
      world.check(0);
      world.check_missing(1, 2);
    }
  }
}

TEST_CASE("gemm_ar: boxes of a hold the rows that there are") {
  constexpr Sm90Tile kTiles[] = {Sm90Tile::k128x128, Sm90Tile::k128x64, Sm90Tile::k128x256};
  int turn = 0;
  for (const std::int64_t m : {16, 63, 64, 65, 127, 128}) {
    const GemmShape shape =
        turn < 2 ? GemmShape{m, 136, 200, DataType::kF16, Layout::kColumnMajor} : GemmShape{m, 136, 200};
    for (const bool to_all : {false, true})
      check_reduce<kAr>(shape, {1, 2}, {.tile = kTiles[turn % 3], .to_all = to_all}, true);
    ++turn;
  }
}

TEST_CASE("gemm_ar: more units of few rows than warps, which then claim ahead") {
  check_reduce<kAr>({256, 1216, 64}, {1, 2}, {.tile = Sm90Tile::k128x64, .to_all = false}, true);
}

TEST_CASE("gemm_ar: owners of several nodes share tiles") {
  check_reduce<kAr>({70, 136, 72}, {2, 2}, {.tile = Sm90Tile::k128x64}, true);
  check_reduce<kAr>({2, 72, 72, DataType::kF16, Layout::kColumnMajor}, {3, 1}, {.tile = Sm90Tile::k128x128},
                    true);
  check_reduce<kAr>({300, 72, 72}, {2, 1}, {.tile = Sm90Tile::k128x64}, false);
}

TEST_CASE("gemm_ar: of two launches at a time one fails and says so") {
  ReduceRanks<kAr> rank({300, 136, 72}, {1, 1}, {.tile = Sm90Tile::k128x64});
  rank.check(0);
  rank.check_two(1);
}

}  // namespace
}  // namespace mkernel::test

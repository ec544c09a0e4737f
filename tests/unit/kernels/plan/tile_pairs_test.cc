// The order of the tiles of a group of rows, and which tasks of a launch that reads weights are cut.
#include "kernels/plan/tile_pairs.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "kernels/ops/grouped_gemm/groups.h"

namespace mkernel::test {

using namespace mkernel::kernels;

TEST_CASE(
    "tile pairs: every tile once, in bands that go through all columns, however many blocks there are") {
  for (const std::int32_t blocks : {1, 2, 3, 12, 13, 24, 25, 64, 65}) {
    for (const std::int32_t column_pairs : {1, 3}) {
      for (const std::int32_t most : {2, 12, 1000}) {
        CAPTURE(blocks);
        CAPTURE(most);
        const std::int32_t bands = (blocks + most - 1) / most;
        const std::int32_t of_band = ((blocks + bands - 1) / bands + 1) / 2 * 2;
        CHECK(of_band <= most);
        std::set<std::pair<std::int32_t, std::int32_t>> tiles;
        std::int32_t band = 0;
        for (std::int32_t i = 0; i < blocks * column_pairs; ++i) {
          const TilePair pair = banded_tile_pair(i, blocks, column_pairs, most);
          CHECK(tiles.insert({pair.block, pair.column}).second);
          CHECK(tiles.insert({pair.second_block(), pair.second_column()}).second);
          CHECK(pair.second_block() < blocks);
          CHECK(pair.second_column() < 2 * column_pairs);
          CHECK(pair.block / of_band >= band);  // no band is come back to
          band = pair.block / of_band;
        }
        CHECK(std::ssize(tiles) == 2 * column_pairs * blocks);
      }
    }
  }
  // Equal bands: of 13 blocks 8 and 5, not 12 and 1.
  CHECK(banded_tile_pair(8 * 3 - 1, 13, 3, 12).block < 8);
  CHECK(banded_tile_pair(8 * 3, 13, 3, 12).block == 8);
}

TEST_CASE("grouped gemm: what waves leave over is cut into as many parts as clusters can take, and first") {
  // DeepSeek-V3's first product with 64 rows: 42 experts of 8 tasks on 66 clusters.
  const GroupedGemmCuts cuts = grouped_gemm_cuts(336, 66, 4);
  CHECK(cuts.whole == 330);
  CHECK(cuts.cut == 6);
  CHECK(cuts.parts == 4);
  CHECK(cuts.tasks() == 354);
  CHECK(cuts.part(23).task == 5);
  CHECK(cuts.part(24).task == 6);
  CHECK(grouped_gemm_cuts(66 + 30, 66, 4).parts == 2);
  CHECK(grouped_gemm_cuts(66 + 34, 66, 4).parts == 1);
  CHECK(grouped_gemm_cuts(66, 66, 4).tasks() == 66);
  CHECK(grouped_gemm_cuts(0, 66, 4).tasks() == 0);
  for (const std::int32_t tasks : {1, 7, 66, 67, 90, 331, 336}) {
    const GroupedGemmCuts of = grouped_gemm_cuts(tasks, 66, 4);
    std::vector<std::int32_t> parts(static_cast<std::size_t>(tasks), 0);
    for (std::int32_t i = 0; i < of.tasks(); ++i) {
      const GroupedGemmCuts::Part part = of.part(i);
      CHECK(part.part == parts[static_cast<std::size_t>(part.task)]++);
      CHECK(part.parts == (part.task < of.cut ? of.parts : 1));
    }
    for (std::int32_t task = 0; task < tasks; ++task)
      CHECK(parts[static_cast<std::size_t>(task)] == (task < of.cut ? of.parts : 1));
  }
}

}  // namespace mkernel::test

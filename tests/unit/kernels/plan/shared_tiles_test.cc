// Plans of few rows, whose owners share tiles, and that plans of many rows are what they were when they were
// measured: pure, so it is tested without a GPU.
#include "kernels/plan/shared_tiles.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/ops/gemm_ar/plan.h"
#include "kernels/plan/cuts.h"
#include "kernels/plan/tile_reduce_plan.h"
#include "tests/unit/kernels/plan/plan_checks.h"

namespace mkernel::kernels::few_rows {
namespace {

TileReducePlan plan_of(OpKind kind, const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                       const TileReduceOptions& options = {}) {
  auto plan = TileReducePlan::make(kind, shape, topology, rank, kH200, options);
  REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
  return *plan;
}

/// Up to 16 ranks on up to four nodes.
const std::vector<Topology> kTopologies{{1, 1}, {1, 2}, {1, 3}, {1, 4}, {1, 8}, {1, 16}, {2, 1}, {2, 2},
                                        {2, 3}, {2, 8}, {3, 1}, {3, 5}, {4, 1}, {4, 2},  {4, 4}};

TEST_CASE("an owner's turn is where the plan lists it") {
  for (const Topology& topology : kTopologies) {
    for (std::uint32_t rank = 0; rank < topology.world(); ++rank) {
      const TileReducePlan plan = plan_of(OpKind::kGemmRs, {4096, 64, 64}, topology, rank);
      for (std::int32_t turn = 0; turn < plan.tiles.turns(); ++turn)
        CHECK(plan.tiles.turn_of(plan.owners[static_cast<std::size_t>(turn)], plan.rank()) == turn);
    }
  }
}

TEST_CASE("a shared tile is sent to each of its owners once, from the one after this rank on") {
  for (const SharedTiles::Rows& rows : {SharedTiles::Rows{0, 4, 0}, {4, 7, 0}, {2, 3, 0}}) {
    for (std::int32_t rank = 0; rank < 8; ++rank) {
      std::vector<std::int32_t> owners;
      for (std::int32_t i = 0; i < rows.end - rows.begin; ++i) owners.push_back(rows.owner(i, rank));
      if (rank >= rows.begin && rank < rows.end) CHECK(owners.back() == rank);
      std::sort(owners.begin(), owners.end());
      for (std::int32_t i = 0; i < rows.end - rows.begin; ++i)
        CHECK(owners[static_cast<std::size_t>(i)] == rows.begin + i);
    }
  }
}

/// Shapes whose owners share tiles on most topologies: fewer rows than ranks, ragged last tiles, a row more.
const std::vector<std::int64_t> kRows{1, 2, 5, 13, 64, 100, 127, 128, 129, 250, 256, 512, 1000, 2048};

TEST_CASE("all rows of an owner lie in one shared tile, and every part of a tile in the tile's rows") {
  for (const Topology& topology : kTopologies) {
    for (const std::int64_t m : kRows) {
      for (const TileSize& tile : kTiles) {
        for (std::uint32_t rank = 0; rank < topology.world(); rank += 3) {
          const TileReducePlan plan = plan_of(OpKind::kGemmRs, {m, 520, 64}, topology, rank, {.tile = tile});
          const std::int64_t most = ceil_div(m, topology.world());
          CHECK(plan.shared.any() == (topology.world() > 1 && most <= tile.rows && tile.rows <= 128));
          if (!plan.shared.any()) continue;
          CHECK(plan.reduce.row_tiles() == 1);
          CHECK(plan.units.per_block * plan.units.unit_rows >= most);
          CHECK(plan.units.units() == plan.units.per_block * plan.shared.raster.columns());
          std::int32_t highest = 0;
          for (std::int32_t index = 0; index < plan.cluster_tiles() * tile.cluster; ++index) {
            const TileReducePlan::Tile one = plan.tile_at(index / tile.cluster, index % tile.cluster);
            CHECK(one.rows <= tile.rows);
            highest = std::max(highest, one.rows);
            CHECK((one.rows > 0) == !one.parts.empty());
            for (const auto& part : one.parts) {
              const std::int32_t owner = plan.owners[static_cast<std::size_t>(part.turn)];
              CHECK(part.begin == 0);
              CHECK(part.end == plan.reduce.rows_of(owner));
              CHECK(plan.reduce.first_row(owner) >= one.first_row);
              CHECK(plan.reduce.first_row(owner) + part.end <= one.first_row + one.rows);
              const std::int64_t above = (plan.reduce.first_row(owner) - one.first_row) % 64;
              std::int64_t head = 0;
              while (above > 0 && head < part.end && above + head < 64) ++head;
              CHECK(plan.head_rows(owner) == head);
            }
          }
          CHECK(plan.a_box_rows() == highest);
        }
      }
    }
  }
}

TEST_CASE("where every rank gets all rows, each tile goes to all of them, and ranks agree on every offset") {
  for (const std::uint32_t ranks : {2U, 3U, 8U, 16U}) {
    for (const std::int64_t m : {1, 5, 64, 129, 250}) {
      for (const Sm90Tile tile : {Sm90Tile::k128x64, Sm90Tile::k128x128, Sm90Tile::k128x256}) {
        const GemmShape shape{m, 520, 64};
        std::vector<int> times(static_cast<std::size_t>(m * 520));
        const auto plan =
            GemmArPlan::make(shape, Topology(1, ranks), ranks - 1, kH200, {.tile = tile, .to_all = true});
        REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
        const TileReducePlan& product = plan.value().product;
        CHECK(plan.value().copies() == 0);
        CHECK(plan.value().data_bytes() == static_cast<std::uint64_t>(ranks) * product.reduce.slot_bytes());
        CHECK(plan.value().word_bytes() == product.word_bytes());
        const std::int32_t cluster = product.tile.cluster;
        for (std::int32_t index = 0; index < product.cluster_tiles() * cluster; ++index) {
          const TileReducePlan::Tile one = product.tile_at(index / cluster, index % cluster);
          if (one.parts.empty()) continue;
          REQUIRE(one.parts.size() == ranks);
          for (std::size_t i = 0; i < one.parts.size(); ++i) {
            CHECK(one.parts[i].turn == static_cast<std::int32_t>(i));
            CHECK(one.parts[i].begin == one.first_row);
            CHECK(one.parts[i].end == one.first_row + one.rows);
          }
          const std::int64_t first = std::int64_t{one.column} * product.tile.columns;
          for (std::int64_t row = one.first_row; row < one.first_row + one.rows; ++row) {
            for (std::int64_t c = first; c < std::min<std::int64_t>(520, first + product.tile.columns); ++c)
              ++times[static_cast<std::size_t>(row * 520 + c)];
          }
        }
        CHECK(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
      }
    }
  }
}

TEST_CASE("all ranks choose the same tiles and the same way, also where only some have rows") {
  for (const Topology& topology : kTopologies) {
    for (const OpKind kind : {OpKind::kGemmRs, OpKind::kGemmAr}) {
      for (const std::int64_t m : kRows) {
        for (const std::int64_t n : {264, 8192}) {
          const TileReducePlan first = plan_of(kind, {m, n, 72}, topology, 0);
          for (std::uint32_t rank = 1; rank < topology.world(); ++rank) {
            const TileReducePlan other = plan_of(kind, {m, n, 72}, topology, rank);
            CHECK(other.tile == first.tile);
            CHECK(other.reduce.to_all == first.reduce.to_all);
            CHECK(other.shared.any() == first.shared.any());
            CHECK(other.reduce_ctas == first.reduce_ctas);
            CHECK(other.data_bytes() == first.data_bytes());
          }
        }
      }
    }
  }
}

TEST_CASE("of few rows the weights are read once, in one wave of tiles") {
  for (const std::uint32_t ranks : {2U, 4U, 8U, 16U}) {
    for (const OpKind kind : {OpKind::kGemmRs, OpKind::kGemmAr}) {
      const TileReducePlan plan = plan_of(kind, {64, 8192, 7168}, Topology(1, ranks), 0);
      CHECK(plan.shared.any());
      CHECK(plan.shared.raster.rows() == 1);
      CHECK(plan.cluster_tiles() <= plan.compute_ctas / plan.tile.cluster);
      check_grid(plan.reduce_ctas, plan.compute_ctas, plan.tile);
    }
  }
  // Owners of 128 rows have a tile each, two of which share b as the two CTAs of a cluster.
  const TileReducePlan high = plan_of(OpKind::kGemmRs, {512, 8192, 7168}, Topology(1, 4), 0);
  CHECK(high.shared.owners == 1);
  CHECK(high.shared.raster.rows() == 2);
  // Memory bounds tiles of 128 columns as it does those of 64, but of the former every other CTA has no rows.
  const auto bound = TileReducePlan::make(OpKind::kGemmRs, {16, 8192, 7168}, Topology(1, 4), 0, kH100);
  CHECK(bound.value().tile == Sm90Tile::k128x64);
  CHECK_FALSE(plan_of(OpKind::kGemmRs, {516, 8192, 7168}, Topology(1, 4), 0).shared.any());
  CHECK_FALSE(plan_of(OpKind::kGemmRs, {64, 8192, 7168}, Topology(1, 1), 0).shared.any());
}

TEST_CASE("every rank sums all rows where that takes less than to send sums on, and only on one node") {
  const auto to_all = [](std::int64_t m, const Topology& topology) {
    return plan_of(OpKind::kGemmAr, {m, 8192, 7168}, topology, 0).reduce.to_all;
  };
  // Of two ranks either way moves as much, and sending on comes one latency later.
  CHECK(to_all(1, {1, 2}));
  CHECK(to_all(128, {1, 2}));
  CHECK(to_all(8, {1, 4}));
  CHECK_FALSE(to_all(16, {1, 4}));
  CHECK(to_all(1, {1, 8}));
  CHECK_FALSE(to_all(64, {1, 8}));
  CHECK_FALSE(to_all(1, {2, 2}));
  // Nobody waits for sums where they would come late anyway: the cost decides, with the machine's latency.
  Machine near = kH200;
  near.push_latency = 0;
  CHECK_FALSE(GemmArPlan::make({8, 8192, 7168}, Topology(1, 4), 0, near).value().product.reduce.to_all);
  CHECK_FALSE(plan_of(OpKind::kGemmRs, {1, 8192, 7168}, Topology(1, 2), 0).reduce.to_all);
}

TEST_CASE("a way of the all-reduce that cannot be is refused by name, value and limit") {
  const auto text = [](OpKind kind, std::int64_t m, const Topology& topology) {
    return TileReducePlan::make(kind, {m, 64, 64}, topology, 0, kH200, {.to_all = true}).status().text();
  };
  CHECK(text(OpKind::kGemmAr, 64, {1, 2}).empty());
  for (const auto& [kind, m, topology, name] :
       {std::tuple{OpKind::kGemmAr, 64, Topology(2, 1),
                   "gemm_ar: to_all = true with m = 64, n = 64 on 2 nodes"},
        std::tuple{OpKind::kGemmAr, 257, Topology(1, 2),
                   "gemm_ar: to_all = true with m = 257, n = 64 on 1 nodes"},
        std::tuple{OpKind::kGemmAr, 64, Topology(1, 1),
                   "gemm_ar: to_all = true with m = 64, n = 64 on 1 nodes"},
        std::tuple{OpKind::kGemmRs, 64, Topology(1, 2),
                   "gemm_rs: to_all = true with m = 64, n = 64 on 1 nodes"}}) {
    const std::string refused = text(kind, m, topology);
    CHECK_MESSAGE(refused.find(name) != std::string::npos, refused);
    CHECK_MESSAGE(refused.find("at most 128 rows") != std::string::npos, refused);
  }
}

TEST_CASE("marked slots lie behind each other, and are not chosen where they take too much memory") {
  const TileReducePlan plan =
      TileReducePlan::make(OpKind::kGemmAr, {33, 8184, 64}, Topology(1, 4), 1, kH200, {.to_all = true})
          .value();
  const PushReducePlan& reduce = plan.reduce;
  std::uint64_t end = 0;
  for (const std::uint64_t half : {0, 1}) {
    for (std::int32_t source = 0; source < 4; ++source) {
      CHECK(reduce.marked_offset(half, source) % 128 == 0);
      CHECK(reduce.marked_offset(half, source) >= end);
      end = reduce.marked_offset(half, source) + 33 * 8184 * 2;
    }
  }
  CHECK(reduce.marked_end() >= end);
  CHECK(plan.reduce_ctas == 2);
  // 2 halves x 2 ranks x 256 rows x 32768 columns x 2 bytes are just 64 MiB.
  const auto wide = [](std::int64_t n, std::optional<bool> to_all) {
    return TileReducePlan::make(OpKind::kGemmAr, {256, n, 64}, Topology(1, 2), 0, kH200, {.to_all = to_all});
  };
  CHECK(wide(32768, true).value().reduce.marked_bytes() == PushReducePlan::kMostMarkedBytes);
  CHECK_FALSE(wide(32776, std::nullopt).value().reduce.to_all);
  const std::string refused = wide(32776, true).status().text();
  CHECK_MESSAGE(refused.find("n = 32776") != std::string::npos, refused);
  CHECK_MESSAGE(refused.find("64 MiB at most") != std::string::npos, refused);
}

TEST_CASE("the expected time of few rows is bound by memory, and grows with rows and ranks") {
  const auto seconds = [](OpKind kind, std::int64_t m, std::uint32_t ranks, const Machine& machine = kH200) {
    const GemmShape shape{m, 8192, 4096};
    const auto plan = TileReducePlan::make(kind, shape, Topology(1, ranks), 0, machine);
    REQUIRE(plan.ok());
    return estimated_seconds(kind, shape, plan.value());
  };
  Machine slow = kH200;
  slow.memory_bytes /= 8;
  const double weights = 2.0 * 8192 * 4096;  // bytes
  for (const OpKind kind : {OpKind::kGemmRs, OpKind::kGemmAr}) {
    CHECK(seconds(kind, 64, 4, slow) > weights / slow.memory_bytes);
    CHECK(seconds(kind, 64, 4, slow) > seconds(kind, 64, 4) + 25e-6);
    CHECK(seconds(kind, 64, 4) < seconds(kind, 128, 4));
    CHECK(seconds(kind, 64, 2) < seconds(kind, 64, 8));
    // Beside the product: two latencies, start and end.
    CHECK(seconds(kind, 1, 4) < weights / kH200.memory_bytes + 20e-6);
  }
  CHECK(seconds(OpKind::kGemmRs, 64, 4) < seconds(OpKind::kGemmAr, 64, 4));
}

/// Of shapes that were measured (tests/perf/results): what the plan was then, on H200s.
struct Recorded {
  OpKind kind;
  GemmShape shape;
  std::uint32_t nodes, ranks;
  TileSize tile;
  std::int32_t reduce_ctas, compute_ctas, band, units;
  std::uint64_t data_bytes;
};
using enum Sm90Tile;
constexpr OpKind kRs = OpKind::kGemmRs, kAr = OpKind::kGemmAr;
const Recorded kRecorded[] = {
    {kRs, {2048, 2048, 512}, 1, 4, k128x128, 4, 128, 1, 512, 8388608},
    {kRs, {4096, 4096, 1024}, 1, 4, k128x128, 4, 128, 1, 2048, 33554432},
    {kRs, {8192, 8192, 2048}, 1, 4, k128x256, 4, 128, 2, 8192, 134217728},
    {kRs, {16384, 16384, 4096}, 1, 4, k128x256, 4, 128, 2, 32768, 536870912},
    {kRs, {32768, 32768, 8192}, 1, 4, k128x256, 2, 130, 2, 131072, 2147483648},
    {kRs, {4097, 4096, 1024}, 1, 4, k128x128, 4, 128, 1, 2560, 33587200},
    {kRs, {12345, 12288, 3072}, 1, 4, k128x256, 4, 128, 2, 19968, 303464448},
    {kRs, {2048, 2048, 1024}, 1, 2, k128x128, 4, 128, 3, 1024, 8388608},
    {kRs, {8192, 8192, 4096}, 1, 2, k128x256, 4, 128, 4, 16384, 134217728},
    {kRs, {16384, 16384, 8192}, 1, 2, k128x256, 4, 128, 4, 65536, 536870912},
    {kRs, {8192, 8192, 14336}, 1, 2, k128x256, 4, 128, 4, 16384, 134217728},
    {kRs, {4096, 4096, 4096}, 2, 1, k128x256, 12, 120, 7, 4096, 67108864},
    {kRs, {8192, 8192, 4096}, 2, 1, k128x256, 12, 120, 7, 16384, 268435456},
    {kRs, {16384, 16384, 8192}, 2, 1, k128x256, 12, 120, 7, 65536, 1073741824},
    {kRs, {4096, 4096, 1024}, 2, 2, k128x256, 12, 120, 4, 2048, 50331648},
    {kRs, {8192, 8192, 2048}, 2, 2, k128x256, 12, 120, 4, 8192, 201326592},
    {kRs, {16384, 16384, 4096}, 2, 2, k128x256, 12, 120, 4, 32768, 805306368},
    {kRs, {512, 8192, 14336}, 1, 2, k128x256, 4, 128, 1, 1024, 8388608},
    {kRs, {512, 8192, 4096}, 1, 2, k128x256, 4, 128, 1, 1024, 8388608},
    {kRs, {512, 16384, 26624}, 1, 2, k128x256, 4, 128, 1, 2048, 16777216},
    {kRs, {1024, 8192, 7168}, 1, 4, k128x256, 4, 128, 1, 1024, 16777216},
    {kRs, {1024, 8192, 2048}, 1, 4, k128x256, 4, 128, 1, 1024, 16777216},
    {kRs, {1024, 16384, 13312}, 1, 4, k128x256, 4, 128, 1, 2048, 33554432},
    {kRs, {2048, 16384, 4096}, 1, 4, k128x256, 4, 128, 2, 4096, 67108864},
    {kRs, {4096, 8192, 7168}, 1, 4, k128x256, 4, 128, 2, 4096, 67108864},
    {kRs, {7777, 4096, 1024}, 1, 1, k128x256, 8, 124, 8, 15872, 63709184},
    {kRs, {64, 8192, 8192}, 1, 1, k128x64, 4, 128, 1, 512, 1048576},
    {kAr, {2048, 2048, 512}, 1, 4, k128x128, 4, 128, 1, 512, 8388608},
    {kAr, {4096, 4096, 1024}, 1, 4, k128x128, 4, 128, 1, 2048, 33554432},
    {kAr, {8192, 8192, 2048}, 1, 4, k128x128, 24, 108, 1, 8192, 134217728},
    {kAr, {16384, 16384, 4096}, 1, 4, k128x256, 16, 116, 2, 32768, 536870912},
    {kAr, {32768, 32768, 8192}, 1, 4, k128x256, 8, 124, 2, 131072, 2147483648},
    {kAr, {4097, 4096, 1024}, 1, 4, k128x128, 4, 128, 1, 2560, 33587200},
    {kAr, {12345, 12288, 3072}, 1, 4, k128x256, 24, 108, 2, 19968, 303464448},
    {kAr, {2048, 2048, 1024}, 1, 2, k128x128, 4, 128, 3, 1024, 8388608},
    {kAr, {8192, 8192, 4096}, 1, 2, k128x256, 18, 114, 4, 16384, 134217728},
    {kAr, {16384, 16384, 8192}, 1, 2, k128x256, 8, 124, 4, 65536, 536870912},
    {kAr, {8192, 8192, 14336}, 1, 2, k128x256, 4, 128, 4, 16384, 134217728},
    {kAr, {4096, 4096, 4096}, 2, 1, k128x256, 24, 108, 7, 4096, 67108864},
    {kAr, {8192, 8192, 4096}, 2, 1, k128x256, 24, 108, 7, 16384, 268435456},
    {kAr, {16384, 16384, 8192}, 2, 1, k128x256, 24, 108, 7, 65536, 1073741824},
    {kAr, {4096, 4096, 1024}, 2, 2, k128x128, 24, 108, 3, 2048, 50331648},
    {kAr, {8192, 8192, 2048}, 2, 2, k128x256, 24, 108, 4, 8192, 201326592},
    {kAr, {16384, 16384, 4096}, 2, 2, k128x256, 24, 108, 4, 32768, 805306368},
    {kAr, {512, 8192, 14336}, 1, 2, k128x256, 4, 128, 1, 1024, 8388608},
    {kAr, {512, 8192, 4096}, 1, 2, k128x256, 4, 128, 1, 1024, 8388608},
    {kAr, {512, 16384, 26624}, 1, 2, k128x256, 4, 128, 1, 2048, 16777216},
    {kAr, {1024, 8192, 7168}, 1, 4, k128x256, 4, 128, 1, 1024, 16777216},
    {kAr, {1024, 8192, 2048}, 1, 4, k128x128, 24, 108, 1, 1024, 16777216},
    {kAr, {1024, 16384, 13312}, 1, 4, k128x256, 4, 128, 1, 2048, 33554432},
    {kAr, {2048, 16384, 4096}, 1, 4, k128x256, 18, 114, 2, 4096, 67108864},
    {kAr, {4096, 8192, 7168}, 1, 4, k128x256, 10, 122, 2, 4096, 67108864},
    {kAr, {7777, 4096, 1024}, 1, 1, k128x256, 2, 130, 8, 15872, 63709184},
    {kAr, {64, 8192, 8192}, 1, 1, k128x64, 2, 128, 1, 512, 1048576},
};

TEST_CASE("plans of many rows are those that were measured") {
  for (const Recorded& row : kRecorded) {
    const TileReducePlan plan = plan_of(row.kind, row.shape, Topology(row.nodes, row.ranks), 0);
    CAPTURE(row.shape.m);
    CAPTURE(row.shape.k);
    CHECK_FALSE(plan.shared.any());
    CHECK(plan.tile == row.tile);
    CHECK(plan.reduce_ctas == row.reduce_ctas);
    CHECK(plan.compute_ctas == row.compute_ctas);
    CHECK(plan.tiles.raster.band() == row.band);
    CHECK(plan.units.units() == row.units);
    CHECK(plan.data_bytes() == row.data_bytes);
  }
}

}  // namespace
}  // namespace mkernel::kernels::few_rows

// The plan of a product whose tiles are summed over ranks: pure, so it is tested without a GPU.
#include "kernels/plan/tile_reduce_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/plan/cuts.h"
#include "tests/unit/kernels/plan/plan_checks.h"

namespace mkernel::kernels {
namespace {

TileReducePlan reduce_plan_of(const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                              const TileReduceOptions& options = {}) {
  auto plan = TileReducePlan::make(OpKind::kGemmRs, shape, topology, rank, kH200, options);
  REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
  return *plan;
}
TileReducePlan reduce_plan_of(const GemmShape& shape, std::uint32_t world, std::uint32_t rank,
                              const TileReduceOptions& options = {}) {
  return reduce_plan_of(shape, Topology(1, world), rank, options);
}

const std::vector<Topology> kTopologies{{1, 1}, {1, 2}, {1, 3}, {1, 4}, {1, 8},
                                        {2, 1}, {2, 2}, {2, 4}, {3, 2}, {4, 1}};

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

TEST_CASE("every element is computed by one tile, and summed in one unit on every node") {
  for (const Topology& topology : kTopologies) {
    for (const GemmShape& shape :
         {GemmShape{1, 8, 8}, GemmShape{5, 136, 64}, GemmShape{1000, 392, 64}, GemmShape{2049, 8, 16}}) {
      for (const TileSize& tile : kTiles) {
        std::vector<Counts> summed(topology.nodes(), Counts(static_cast<std::size_t>(shape.m * shape.n)));
        for (std::uint32_t rank = 0; rank < topology.world(); ++rank) {
          const TileReducePlan plan = reduce_plan_of(shape, topology, rank, {.tile = tile});
          const PushReducePlan& reduce = plan.reduce;
          const std::int64_t width = tile.columns;
          Counts computed(summed[0].size());
          for (std::int32_t index = 0; index < plan.cluster_tiles() * tile.cluster; ++index) {
            const TileReducePlan::Tile one = plan.tile_at(index / tile.cluster, index % tile.cluster);
            for (const auto& part : one.parts) {
              const std::int64_t first = reduce.first_row(plan.owners[part.turn]);
              count(computed, shape, first + part.begin, first + part.end, one.column, width);
            }
          }
          CHECK(all_ones(computed));
          for (std::int32_t index = 0; index < plan.units.all_units(); ++index) {
            const ReduceUnits::Turn turn = plan.units.turn(index);
            const ReduceUnits::Place place = plan.units.place(turn.unit);
            const std::int32_t owner = plan.owners[(turn.node_turn + 1) * reduce.sources - 1];
            const std::int64_t first = reduce.first_row(owner), rows = reduce.rows_of(owner);
            if (place.row < rows) CHECK(place.row_tile < reduce.row_tiles());
            CHECK(place.row / tile.rows == place.row_tile);
            count(summed[topology.node_of(rank)], shape, first + std::min(rows, place.row),
                  first + std::min(rows, place.row + plan.units.unit_rows), place.column, width);
          }
        }
        for (const Counts& node : summed) CHECK(all_ones(node));
      }
    }
  }
}

TEST_CASE("owners take turns from the next node and the next rank on, this rank last") {
  const TileReducePlan plan = reduce_plan_of({8192, 8192, 2048}, 4, 2, {.tile = Sm90Tile::k128x256});
  REQUIRE(plan.tiles.raster.rows() == 8);
  REQUIRE(plan.tiles.tiles() == 4 * 8 * plan.tiles.raster.columns());
  CHECK(plan.owners == std::vector<std::int32_t>{3, 0, 1, 2});
  for (std::int32_t index = 0; index < plan.tiles.tiles(); ++index)
    CHECK(plan.tiles.place(index).turn == index % 4);
  CHECK(plan.rail_peers().empty());
  CHECK(plan.wire_bytes() == 0);

  const TileReducePlan nodes =
      reduce_plan_of({6144, 8192, 2048}, Topology(3, 2), 2, {.tile = Sm90Tile::k128x256});
  CHECK(nodes.owners == std::vector<std::int32_t>{5, 4, 1, 0, 3, 2});
  CHECK(nodes.rail_peers() == std::vector<std::int32_t>{4, 0});
  CHECK(nodes.rank() == 2);
  CHECK(nodes.wire_bytes() == 2 * 1024 * 8192 * 2);
  const std::int32_t of_one = nodes.tiles.raster.tiles();
  for (std::int32_t index = 0; index < nodes.tiles.tiles(); ++index) {
    const std::int32_t expected = index < 4 * of_one ? index % 4 : 4 + index % 2;
    CHECK(nodes.tiles.place(index).turn == expected);
  }
}

TEST_CASE("sums follow in the order in which their tiles become complete") {
  for (const Topology& topology : kTopologies) {
    for (const TileSize& tile : kTiles) {
      const TileReducePlan plan =
          reduce_plan_of({9000, 2000, 512}, topology, topology.world() - 1, {.tile = tile});
      const OwnerTiles& tiles = plan.tiles;
      const std::int32_t cluster_rows = tile.block_rows();
      // By turn, row block and column: which tile it is that a rank computes.
      std::vector<std::int32_t> number(static_cast<std::size_t>(tiles.tiles()));
      const auto at = [&](std::int32_t turn, std::int64_t block, std::int32_t column) {
        return static_cast<std::size_t>((turn * tiles.raster.rows() + block) * tiles.raster.columns() +
                                        column);
      };
      for (std::int32_t index = 0; index < tiles.tiles(); ++index) {
        const OwnerTiles::Place place = tiles.place(index);
        number[at(place.turn, place.block, place.column)] = index;
      }
      std::int32_t before = -1;
      for (std::int32_t index = 0; index < plan.units.all_units(); ++index) {
        const ReduceUnits::Turn turn = plan.units.turn(index);
        const ReduceUnits::Place place = plan.units.place(turn.unit);
        const std::int32_t now =
            number[at((turn.node_turn + 1) * tiles.node_turns - 1, place.row / cluster_rows, place.column)];
        CHECK(now >= before);
        before = now;
      }
    }
  }
}

TEST_CASE("packed units follow each other without those beyond an owner's rows") {
  for (const std::int32_t blocks : {1, 2, 3, 7}) {
    for (const std::int32_t band : {1, 2, 3, 9}) {
      const ReduceUnits units{
          .raster = {blocks, 5, band}, .per_block = 4, .per_tile = 2, .unit_rows = 8, .others = 1};
      for (std::int64_t rows = 0; rows <= blocks * 32; rows += rows % 3 == 0 ? 1 : 5) {
        std::int32_t expected = 0;
        for (std::int32_t unit = 0; unit < units.units(); ++unit) {
          CHECK(units.packed(unit, rows) == expected);
          if (units.place(unit).row < rows) ++expected;
        }
        CHECK(units.packed(units.units(), rows) == expected);
      }
    }
  }
}

TEST_CASE("chunks hold every packed unit once, and an owner without rows gets an empty one") {
  const PutPartialsPlan plan{.begin = 256, .nodes = 3, .units = 100, .chunk_units = 16};
  for (const std::int32_t packed : {0, 1, 15, 16, 17, 100}) {
    CHECK(plan.chunks(packed) >= 1);
    std::int32_t end = 0;
    for (std::int32_t chunk = 0; chunk < plan.chunks(packed); ++chunk) {
      CHECK(plan.chunk_begin(chunk, packed) == end);
      end = plan.chunk_begin(chunk + 1, packed);
      for (std::int32_t unit = plan.chunk_begin(chunk, packed); unit < end; ++unit)
        CHECK(unit / plan.chunk_units == chunk);
      CHECK(plan.count(7, packed, chunk) == static_cast<std::uint64_t>(7 * plan.chunks(packed) + chunk + 1));
    }
    CHECK(end == packed);
  }
}

TEST_CASE("what is staged for every other node, and what arrives from it, does not overlap") {
  for (const std::int32_t nodes : {1, 2, 4}) {
    const TileReducePlan plan = reduce_plan_of({1003, 72, 64}, Topology(nodes, 2), 0);
    const PutPartialsPlan& partials = plan.partials;
    CHECK(partials.begin % 128 == 0);
    CHECK(partials.begin >= plan.reduce.data_bytes());
    const std::uint64_t block = static_cast<std::uint64_t>(partials.units) * PutPartialsPlan::kUnitBytes;
    std::uint64_t end = partials.begin;
    for (std::int32_t turn = 0; turn < nodes - 1; ++turn, end += block)
      CHECK(partials.staged_offset(turn) == end);
    for (std::int32_t turn = 0; turn < nodes - 1; ++turn, end += block)
      CHECK(partials.partial_offset(turn) == end);
    CHECK(end == plan.data_bytes());
  }
}

TEST_CASE("a chunk is about a megabyte, less where the first one would leave late") {
  const auto chunk_bytes = [](std::int64_t size) {
    return reduce_plan_of({size, size, size / 4}, Topology(2, 2), 0).partials.chunk_units *
           PutPartialsPlan::kUnitBytes;
  };
  CHECK(chunk_bytes(512) == 64 << 10);
  CHECK(chunk_bytes(4096) == 256 << 10);
  CHECK(chunk_bytes(8192) == 1 << 20);
  CHECK(chunk_bytes(32768) == 1 << 20);
}

/// Milliseconds of a launch of rank 0 by the plan, when tiles become complete at an even pace and sums take
/// no time: partials leave in chunks as their tiles are there.
double simulate(const TileReducePlan& plan, double product_ms, double bytes_per_ms, double latency_ms) {
  const double per_tile = product_ms / plan.tiles.tiles();
  const std::int32_t rows = plan.tiles.raster.rows(), columns = plan.tiles.raster.columns();
  std::vector<double> complete(static_cast<std::size_t>(plan.tiles.tiles()));
  for (std::int32_t index = 0; index < plan.tiles.tiles(); ++index) {
    const OwnerTiles::Place place = plan.tiles.place(index);
    complete[(place.turn * rows + place.block) * columns + place.column] = (index + 1) * per_tile;
  }
  const PutPartialsPlan& partials = plan.partials;
  std::vector<double> staged(static_cast<std::size_t>(plan.most_chunks()));  // by chunk, of one other node
  for (std::int32_t unit = 0; unit < plan.units.units(); ++unit) {
    const ReduceUnits::Place place = plan.units.place(unit);
    const std::int32_t block =
        static_cast<std::int32_t>(place.row / (plan.units.per_block * plan.units.unit_rows));
    double& when = staged[static_cast<std::size_t>(unit / partials.chunk_units)];
    when = std::max(when, complete[((plan.tiles.node_turns - 1) * rows + block) * columns + place.column]);
  }
  double wire = 0;
  for (const double when : staged) {
    const double bytes = static_cast<double>(partials.chunk_units) * PutPartialsPlan::kUnitBytes;
    wire = std::max(wire, when) + bytes / bytes_per_ms;
  }
  return std::max(product_ms, wire + latency_ms);
}

TEST_CASE("over two nodes a launch takes no more than 1.1 times what product or wire take") {
  for (const std::int64_t size : {8192, 16384}) {
    for (const Topology& topology : {Topology(2, 1), Topology(2, 2)}) {
      const GemmShape shape{size, size, size / topology.world()};
      const TileReducePlan plan = reduce_plan_of(shape, topology, 0);
      const double product_ms = 2.0 * size * size * static_cast<double>(shape.k) / 670e9;
      constexpr double kBytesPerMs = 50e6, kLatencyMs = 0.02;
      const double wire_ms = static_cast<double>(plan.wire_bytes()) / kBytesPerMs;
      CHECK(plan.wire_bytes() == static_cast<std::uint64_t>(size * size * 2 / topology.world()));
      CHECK(simulate(plan, product_ms, kBytesPerMs, kLatencyMs) < 1.1 * std::max(product_ms, wire_ms));
    }
  }
}

TEST_CASE("no wave of tiles is lost to the CTAs that sum; over several nodes some always do") {
  // 32 x 32 cluster tiles: 16 waves on 64 clusters as on the 65 that two summing CTAs leave.
  const TileReducePlan plan = reduce_plan_of({8192, 8192, 2048}, 4, 0, {.tile = Sm90Tile::k128x256});
  CHECK(plan.reduce_ctas == 4);
  CHECK(plan.compute_ctas == 128);
  CHECK(reduce_plan_of({2048, 2048, 16384}, Topology(2, 2), 0).reduce_ctas == 12);
  CHECK(
      reduce_plan_of({8192, 8192, 2048}, 4, 0, {.tile = Sm90Tile::k128x256, .reduce_ctas = 10}).reduce_ctas ==
      10);
}

TEST_CASE("where the links are slower than the product, tiles are smaller") {
  CHECK(reduce_plan_of({4096, 4096, 1024}, 4, 0).tile == Sm90Tile::k128x128);
  CHECK(reduce_plan_of({4096, 4096, 1024}, 1, 0).tile == Sm90Tile::k128x256);  // nothing to send
  CHECK(reduce_plan_of({8192, 8192, 2048}, 4, 0).tile == Sm90Tile::k128x256);
}

TEST_CASE("words and slots do not overlap each other, and counts only grow") {
  for (const Topology& topology : kTopologies) {
    const PushReducePlan reduce = reduce_plan_of({1003, 72, 64}, topology, 0).reduce;
    const auto sources = static_cast<std::int32_t>(topology.ranks_per_node());
    const auto nodes = static_cast<std::int32_t>(topology.nodes());
    CHECK(reduce.nodes() == nodes);
    std::uint64_t words = 0, end = 0;
    for (std::int32_t turn = 0; turn < nodes; ++turn) {
      for (std::int32_t source = 0; source < sources; ++source) {
        CHECK(reduce.ready_offset(turn, source) == words);
        CHECK(reduce.slot_offset(turn, source) == end);
        CHECK(end % 128 == 0);
        CHECK(reduce.slot_bytes() >= static_cast<std::uint64_t>(reduce.max_rows() * 72 * 2));
        words += static_cast<std::uint64_t>(reduce.row_tiles() * reduce.column_tiles() * 8);
        end += reduce.slot_bytes();
      }
    }
    CHECK(words == reduce.word_bytes());
    CHECK(end == reduce.data_bytes());
    CHECK(PushReducePlan::count(0) == 1);
    CHECK(PushReducePlan::count(5) == 6);
  }
}

TEST_CASE("the grid fits the device, in whole clusters") {
  for (const std::int64_t size : {8, 512, 2048, 8192, 32768}) {
    for (const Topology& topology : kTopologies) {
      const TileReducePlan plan = reduce_plan_of({size, size, size / 4 / 8 * 8 + 8}, topology, 0);
      check_grid(plan.reduce_ctas, plan.compute_ctas, plan.tile);
    }
  }
}

TEST_CASE("on a small share of a GPU there are CTAs that sum and others that multiply") {
  for (const OpKind kind : {OpKind::kGemmRs, OpKind::kGemmAr}) {
    for (const std::int32_t sms : {4, 6, 8, 14}) {
      for (const Topology& topology : {Topology(1, 8), Topology(2, 8), Topology(6, 5), Topology(16, 1)}) {
        for (const GemmShape& shape :
             {GemmShape{3000, 512, 256}, GemmShape{5, 136, 72}, GemmShape{512, 512, 8192}}) {
          const auto plan = TileReducePlan::make(kind, shape, topology, 0, kH200.with_sms(sms));
          REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
          CHECK(plan->reduce_ctas >= 2);
          CHECK(plan->compute_ctas >= 2);
          CHECK(plan->reduce_ctas + plan->compute_ctas <= sms);
        }
      }
    }
  }
}

TEST_CASE("what cannot run is refused by name, value and limit") {
  const auto refusal = [](const GemmShape& shape, const Topology& topology,
                          const TileReduceOptions& options = {}) {
    return TileReducePlan::make(OpKind::kGemmRs, shape, topology, 0, kH200, options).status();
  };
  const Topology node(1, 4);
  check_refused_shapes([&](const GemmShape& shape) { return refusal(shape, node); });
  for (const std::int32_t reduce_ctas : {-2, 3, 68}) {
    const Status status = refusal({64, 64, 64}, node, {.reduce_ctas = reduce_ctas});
    CHECK(status.text().find("comm_ctas = " + std::to_string(reduce_ctas) + ", must be even, 0..66") !=
          std::string::npos);
  }
  CHECK(refusal({64, 64, 64}, Topology(1, 17)).text().find("ranks of a node = 17, must be 1..16") !=
        std::string::npos);
}

TEST_CASE("the expected time lies within a quarter of what four H200s took") {
  // Milliseconds of tests/perf/results/h200x4-2026-11-22-gemm_rs.json and gemm_ar.json: m = n, k = m / 4.
  struct Row {
    std::int64_t m;
    double reduce_scatter, all_reduce;
  };
  for (const Row& row : {Row{4096, 0.101, 0.172}, Row{8192, 0.421, 0.637}, Row{16384, 2.990, 3.324}}) {
    for (const OpKind kind : {OpKind::kGemmRs, OpKind::kGemmAr}) {
      const GemmShape shape{row.m, row.m, row.m / 4};
      auto plan = TileReducePlan::make(kind, shape, Topology(1, 4), 0, kH200);
      REQUIRE(plan.ok());
      const double measured = 1e-3 * (kind == OpKind::kGemmRs ? row.reduce_scatter : row.all_reduce);
      const double expected = estimated_seconds(kind, shape, *plan);
      CAPTURE(row.m);
      CAPTURE(kind == OpKind::kGemmRs);
      CHECK(expected > 0.75 * measured);
      CHECK(expected < 1.05 * measured);
    }
  }
}

TEST_CASE("the expected time grows with the wire that is slow, and a rank alone waits for its product") {
  const GemmShape shape{8192, 8192, 2048};
  Machine slow = kH200;
  slow.nic = 5e9;
  const auto seconds = [&](const Topology& topology, const Machine& machine) {
    auto plan = TileReducePlan::make(OpKind::kGemmRs, shape, topology, 0, machine);
    REQUIRE(plan.ok());
    return estimated_seconds(OpKind::kGemmRs, shape, *plan);
  };
  const double sent = 2.0 * 8192 * 8192 / 2;  // bytes: half of the rows are another node's
  CHECK(seconds({2, 1}, slow) > sent / 5e9);
  CHECK(seconds({2, 1}, slow) < 1.2 * sent / 5e9);
  CHECK(seconds({2, 1}, kH200) < seconds({2, 1}, slow) / 4);
  CHECK(seconds({1, 1}, kH200) > 2.0 * 8192 * 8192 * 2048 / 1e15);
  CHECK(seconds({1, 1}, kH200) < seconds({1, 4}, kH200));
}

}  // namespace
}  // namespace mkernel::kernels

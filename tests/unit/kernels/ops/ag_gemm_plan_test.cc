// The plan of AG+GEMM: pure, so it is tested without a GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/ag_gemm/plan.h"
#include "kernels/plan/cuts.h"
#include "proto/abi/version.h"
#include "tests/unit/kernels/ops/ag_gemm_plan_of.h"
#include "tests/unit/kernels/plan/plan_checks.h"

namespace mkernel::kernels {
namespace {

constexpr std::int32_t kSms = kH200.sms;

/// The cluster tiles and narrow tiles that the clusters of the grid compute, each with its rows of the block
/// and its columns.
struct Computed {
  RasterPlace tile;
  std::int64_t row, rows, column, columns;
};
std::vector<Computed> computed(const AgGemmPlan& plan) {
  const std::int32_t clusters = plan.compute_ctas / plan.tile.cluster, parts = tail_parts(plan.tile);
  const std::int64_t width = plan.tile.columns * std::int64_t{cluster_columns(plan.cluster)};
  const std::int64_t height = plan.tile.rows * std::int64_t{cluster_rows(plan.tile, plan.cluster)};
  const Sm90TailParts tail = tail_parts_of(plan.tile, plan.cluster);
  std::vector<Computed> all;
  const std::int32_t late_clusters = plan.assignment.late > 0 ? plan.assignment.late_clusters : 0;
  for (std::int32_t cluster = -late_clusters; cluster < clusters; ++cluster) {
    for (std::int32_t i = 0; i < plan.assignment.tiles(cluster, clusters); ++i) {
      const TileAssignment::Place place = plan.assignment.place(i, cluster, clusters);
      all.push_back({place.tile, 0, height, place.tile.column * width, width});
    }
    for (std::int32_t i = 0; i < plan.assignment.tail_tiles(cluster, clusters, parts); ++i) {
      const TileAssignment::Place place = plan.assignment.tail_place(i, cluster, clusters, parts);
      for (std::int32_t cta = 0; cta < plan.tile.cluster; ++cta) {
        const Sm90TailParts::Place in = tail.place(place.part, cta);
        all.push_back(
            {place.tile, in.row, plan.tile.rows, place.tile.column * width + in.column, kSm90TailColumns});
      }
    }
  }
  return all;
}

/// How often each element of c is computed, by the tiles as the kernel's schedule cuts them. Eight columns
/// stand for one: n and the columns of tiles are multiples of eight.
std::vector<int> coverage(const GemmShape& shape, const AgGemmPlan& plan) {
  constexpr std::int64_t kColumns = 8;
  std::vector<int> times(static_cast<std::size_t>(shape.m * shape.n / kColumns));
  const std::int64_t height = plan.tile.rows * cluster_rows(plan.tile, plan.cluster);
  for (const Computed& tile : computed(plan)) {
    const ArrivalSteps::Place block = plan.row_block(tile.tile.row);
    const std::int64_t begin = block.block * height + tile.row;
    const std::int64_t rows = std::min(plan.gather.slab_rows(block.source), begin + tile.rows);
    for (std::int64_t row = begin; row < rows; ++row) {
      const std::int64_t first = (plan.gather.slab_row(block.source) + row) * shape.n;
      const std::int64_t end = std::min(shape.n, tile.column + tile.columns);
      for (std::int64_t column = tile.column; column < end; column += kColumns)
        ++times[static_cast<std::size_t>((first + column) / kColumns)];
    }
  }
  return times;
}

TEST_CASE("every element of c belongs to one tile, on every rank of any world") {
  for (const Topology& topology : {Topology(1, 1), Topology(1, 2), Topology(1, 3), Topology(1, 8),
                                   Topology(2, 1), Topology(2, 2), Topology(3, 1), Topology(4, 4)}) {
    for (const GemmShape& shape :
         {GemmShape{1, 8, 8}, GemmShape{5, 136, 64}, GemmShape{1000, 392, 64}, GemmShape{2049, 8, 16}}) {
      for (const TileSize& tile : kTiles) {
        for (std::uint32_t rank = 0; rank < topology.world(); ++rank) {
          const AgGemmPlan plan = ag_gemm_plan_of(shape, topology, rank, {.tile = tile});
          std::vector<std::int32_t> tails{plan.assignment.tail(), 0};
          if (has_tail(tile)) tails.insert(tails.end(), {1, plan.assignment.raster.tiles()});
          for (const std::int32_t tail : tails) {
            const auto times =
                coverage(shape, ag_gemm_plan_of(shape, topology, rank, {.tile = tile, .tail_tiles = tail}));
            CHECK(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
          }
          for (const std::int32_t late : {1, 7, plan.assignment.raster.tiles() + 1}) {
            const auto times =
                coverage(shape, ag_gemm_plan_of(shape, topology, rank, {.tile = tile, .late_tiles = late}));
            CHECK(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
          }
        }
      }
    }
  }
}

TEST_CASE("so it does where the CTAs of a cluster lie side by side, which only those of 128 x 256 do") {
  for (const std::uint32_t world : {1U, 3U, 8U}) {
    for (const GemmShape& shape : {GemmShape{1, 8, 8}, GemmShape{128, 1032, 64}, GemmShape{1000, 392, 64}}) {
      for (const std::int32_t late : {0, 2}) {
        for (const std::int32_t tail : {0, 1, 1000}) {
          const AgGemmPlan plan = ag_gemm_plan_of(shape, world, world - 1,
                                                  {.tile = Sm90Tile::k128x256,
                                                   .cluster = Sm90Cluster::kSideBySide,
                                                   .tail_tiles = tail,
                                                   .late_tiles = late});
          const auto times = coverage(shape, plan);
          CHECK(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
        }
      }
    }
  }
  const auto refused = AgGemmPlan::make({128, 1032, 64}, Topology(1, 2), 0, kH200,
                                        {.tile = Sm90Tile::k128x64, .cluster = Sm90Cluster::kSideBySide});
  CHECK(refused.status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("own rows come first, then the blocks of the others in turn, from the next rank on") {
  const AgGemmPlan plan = ag_gemm_plan_of({4096, 1024, 4096}, 4, 2, {.tile = Sm90Tile::k128x256});
  REQUIRE(plan.steps.own_blocks == 4);
  REQUIRE(plan.steps.steps() == 16);
  for (std::int32_t step = 0; step < 4; ++step) CHECK(plan.steps.place(step).source == 2);
  for (std::int32_t step = 4; step < 16; ++step) {
    const ArrivalSteps::Place place = plan.steps.place(step);
    CHECK(place.source == (2 + 1 + (step - 4) % 3) % 4);
    CHECK(place.block == (step - 4) / 3);
  }
}

TEST_CASE("where rows do not divide, the last blocks are those of the ranks that have one more") {
  // Blocks of 256 rows: 16 and a row, which is rank 3's.
  const AgGemmPlan plan = ag_gemm_plan_of({4097, 1024, 4096}, 4, 1, {.tile = Sm90Tile::k128x256});
  REQUIRE(plan.steps.steps() == 17);
  for (std::int32_t step = 0; step < 16; ++step) CHECK(plan.steps.place(step).block < 4);
  CHECK(plan.steps.place(16).source == 3);
  CHECK(plan.steps.place(16).block == 4);
  // Ranks 2 and 5 of three nodes have it, the other rank of the own node and one of the next; after them come
  // the others' blocks of the same number.
  const AgGemmPlan nodes =
      ag_gemm_plan_of({6146, 1024, 4096}, Topology(3, 2), 3, {.tile = Sm90Tile::k128x256});
  REQUIRE(nodes.steps.steps() == 26);
  CHECK(nodes.steps.place(8).source == 2);
  CHECK(nodes.steps.place(8).block == 4);
  for (std::int32_t step = 9; step < 25; ++step) CHECK(nodes.steps.place(step).block == (step - 9) / 4);
  CHECK(nodes.steps.place(25).source == 5);
  CHECK(nodes.steps.place(25).block == 4);
}

TEST_CASE(
    "over several nodes the ranks of the own one come next, then the others as their senders go round") {
  const Topology topology(3, 2);
  const AgGemmPlan plan = ag_gemm_plan_of({6144, 1024, 4096}, topology, 3, {.tile = Sm90Tile::k128x256});
  REQUIRE(plan.rails() == 2);
  REQUIRE(plan.stores() == 2);
  REQUIRE(plan.steps.steps() == 24);
  for (std::int32_t step = 0; step < 4; ++step) CHECK(plan.steps.place(step).source == 3);
  for (std::int32_t step = 4; step < 8; ++step) {
    CHECK(plan.steps.place(step).source == 2);
    CHECK(plan.steps.place(step).block == step - 4);
  }
  // The own rail first, its rows need nobody else of the node; the node before this one begins with it.
  constexpr std::int32_t kFar[] = {1, 0, 5, 4};
  for (std::int32_t step = 8; step < 24; ++step) {
    CHECK(plan.steps.place(step).source == kFar[(step - 8) % 4]);
    CHECK(plan.steps.place(step).block == (step - 8) / 4);
  }
}

TEST_CASE("the plan hides the wire behind the product, or the product behind the wire") {
  for (const Topology& topology : {Topology(2, 2), Topology(2, 1), Topology(4, 2)}) {
    for (const std::int64_t size : {8192, 16384}) {
      const GemmShape shape{size, size / 4, size};
      const AgGemmPlan plan = ag_gemm_plan_of(shape, topology, 0);
      const double product = estimated_seconds(shape, ag_gemm_plan_of(shape, 1, 0));
      const double bytes =
          static_cast<double>(plan.gather.rows_of(0) * plan.gather.row.row_bytes) * plan.rails();
      CAPTURE(topology.nodes());
      CAPTURE(topology.ranks_per_node());
      CAPTURE(size);
      CHECK(estimated_seconds(shape, plan) < 1.10 * std::max(product, bytes / 50e9));
      // A slower wire takes longer, a faster one does not.
      CHECK(estimated_seconds(shape, ag_gemm_plan_of(shape, topology, 0, {.nic_gbytes = 10})) > bytes / 10e9);
      CHECK(estimated_seconds(shape, ag_gemm_plan_of(shape, topology, 0, {.nic_gbytes = 400})) <
            1.02 * estimated_seconds(shape, plan));
    }
  }
}

TEST_CASE("the chunks of a source are one put each, and fill its slab") {
  for (const GemmShape& shape :
       {GemmShape{1003, 64, 4104}, GemmShape{5, 64, 72}, GemmShape{8192, 64, 8192}}) {
    const PushGatherPlan gather = ag_gemm_plan_of(shape, Topology(2, 2), 0).gather;
    for (std::int32_t source = 0; source < 4; ++source) {
      std::vector<std::pair<std::uint64_t, std::uint64_t>> chunks;
      for (std::int32_t chunk = 0; chunk < gather.chunks(source); ++chunk)
        chunks.emplace_back(gather.chunk_offset(source, chunk), gather.chunk_bytes(source, chunk));
      std::sort(chunks.begin(), chunks.end());
      auto end = static_cast<std::uint64_t>(gather.first_row(source) * gather.row.row_bytes);
      for (const auto& [offset, bytes] : chunks) {
        CHECK(offset == end);
        CHECK(bytes <= abi::kMaxPutBytes);
        end += bytes;
      }
      CHECK(end == static_cast<std::uint64_t>(gather.first_row(source + 1) * gather.row.row_bytes));
    }
  }
}

TEST_CASE("words and slabs do not overlap each other, and counts only grow") {
  for (const std::uint32_t world : {1U, 3U, 8U}) {
    const AgGemmPlan plan = ag_gemm_plan_of({1003, 64, 72}, world, 0);
    const PushGatherPlan& gather = plan.gather;
    const auto sources = static_cast<std::int32_t>(world);
    std::uint64_t words = 0, end = 0;
    for (std::int32_t source = 0; source < sources; ++source) {
      CHECK(gather.ready_offset(source) == words);
      CHECK(gather.slab_offset(source) == end);
      CHECK(end % 16 == 0);
      CHECK(gather.chunks(source) <= gather.max_chunks());
      words += static_cast<std::uint64_t>(gather.max_chunks()) * 8;
      end += static_cast<std::uint64_t>(gather.rows_of(source) * gather.row.row_bytes);
    }
    CHECK(words == gather.word_bytes());
    CHECK(end == gather.data_bytes());
    for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
      CHECK(gather.count(epoch + 1) - gather.count(epoch) == static_cast<std::uint64_t>(gather.shares));
    }
  }
}

TEST_CASE("rows are cut into parts of whole steps along k that fit a stage, the same on every rank") {
  for (const std::int64_t k : {8, 64, 72, 136, 200, 264, 328, 520, 4096, 8192, 8200, 32768, 100000}) {
    for (const std::int64_t m : {1, 1000, 4096, 65536}) {
      const PushGatherPlan gather = ag_gemm_plan_of({m, 64, k}, 4, 0).gather;
      CHECK(gather.row.parts >= 1);
      CHECK(gather.row.parts <= gather.row.lines());
      CHECK(gather.row.first_line(gather.row.parts) == ceil_div(k, kSm90TileK));
      std::int64_t end = 0;
      for (std::int32_t part = 0; part < gather.row.parts; ++part) {
        CHECK(gather.row.begin(part) == end);
        CHECK(gather.row.begin(part) % 128 == 0);
        CHECK(gather.row.bytes(part) > 0);
        CHECK(gather.row.bytes(part) <= 16384);
        // A tile begins with two steps before the one before it is written: a part that the second of them
        // waited for could wait for that.
        if (gather.row.parts > 1) CHECK(gather.row.first_line(part + 1) - gather.row.first_line(part) >= 2);
        end += gather.row.bytes(part);
      }
      CHECK(end == 2 * k);
      for (std::uint32_t rank = 1; rank < 4; ++rank) {
        const PushGatherPlan other = ag_gemm_plan_of({m, 64, k}, 4, rank).gather;
        CHECK(other.row.parts == gather.row.parts);
        CHECK(other.block_rows == gather.block_rows);
        CHECK(other.shares == gather.shares);
      }
    }
  }
}

TEST_CASE("the grid fits the device, in whole clusters, on a slice of a GPU too") {
  for (const std::int64_t size : {8, 512, 2048, 8192, 32768}) {
    for (const std::uint32_t world : {1U, 2U, 4U, 8U, 16U}) {
      for (const std::int32_t sms : {4, 6, 8, 10, 16, 78, kSms}) {
        auto made =
            AgGemmPlan::make({size, size / 4 / 8 * 8 + 8, size}, Topology(1, world), 0, kH200.with_sms(sms));
        REQUIRE_MESSAGE(made.ok(), made.status().to_string());
        const AgGemmPlan& plan = *made;
        check_grid(plan.comm_ctas, plan.compute_ctas, plan.tile, sms);
      }
    }
  }
}

TEST_CASE("what cannot run is refused by name, value and limit") {
  const auto refusal = [](const GemmShape& shape, const Topology& topology,
                          const AgGemmOptions& options = {}) {
    return AgGemmPlan::make(shape, topology, 0, kH200, options).status();
  };
  const Topology node(1, 4);
  check_refused_shapes([&](const GemmShape& shape) { return refusal(shape, node); });
  for (const std::int32_t comm_ctas : {-2, 3, 68}) {
    const Status status = refusal({64, 64, 64}, node, {.comm_ctas = comm_ctas});
    CHECK(status.text().find("comm_ctas = " + std::to_string(comm_ctas) + ", must be even, 0..66") !=
          std::string::npos);
  }
  for (const AgGemmOptions& options :
       {AgGemmOptions{.late_tiles = 2}, AgGemmOptions{.tile = Sm90Tile::k128x256, .late_tiles = -1}}) {
    const Status status = refusal({64, 64, 64}, node, options);
    CHECK(status.text().find("late_tiles = " + std::to_string(*options.late_tiles) + ", must be") !=
          std::string::npos);
  }
  for (const AgGemmOptions& options :
       {AgGemmOptions{.tile = Sm90Tile::k128x256, .tail_tiles = -1}, AgGemmOptions{.tail_tiles = 2},
        AgGemmOptions{.tile = Sm90Tile::k128x64, .tail_tiles = 1}}) {
    const Status status = refusal({64, 64, 64}, node, options);
    CHECK(status.text().find("tail_tiles = " + std::to_string(*options.tail_tiles) + ", must be") !=
          std::string::npos);
  }
  CHECK(AgGemmPlan::make({64, 64, 64}, node, 0, kH200.with_sms(3))
            .status()
            .text()
            .find("sms = 3, must be at least 4") != std::string::npos);
  const auto names = [&](const Topology& topology, const char* text) {
    return refusal({64, 64, 64}, topology).text().find(text) != std::string::npos;
  };
  CHECK(names(Topology(1, 17), "ranks of a node = 17, must be 1..16"));
  CHECK(names(Topology(17, 2), "nodes = 17, must be 1..16"));
  CHECK(names(Topology(5, 13), "world = 65, must be 1..64"));
  for (const Topology& most : {Topology(8, 8), Topology(4, 16), Topology(16, 4)})
    CHECK(AgGemmPlan::make({64, 64, 64}, most, 0, kH200).ok());
  // On the cpu executor rows may have any length and groups more ranks.
  CHECK(AgGemmPlan::make({5, 3, 7}, Topology(4, 16), 0, kHostMachine).ok());
  CHECK(AgGemmPlan::make({5, 3, 7}, Topology(1, 65), 0, kHostMachine)
            .status()
            .text()
            .find("world = 65, must be 1..64") != std::string::npos);
  CHECK(refusal({64, 64, 64}, node, {.nic_gbytes = -1}).text().find("nic_gbytes = -1.000000, must be") !=
        std::string::npos);
  CHECK(refusal({64, 64, 64}, node, {.link_gbytes = -1}).text().find("link_gbytes = -1.000000, must be") !=
        std::string::npos);
}

}  // namespace
}  // namespace mkernel::kernels

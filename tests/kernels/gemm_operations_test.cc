// AG+GEMM, GEMM+RS and GEMM+AR on the cpu executor: every element of every rank, on every world.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "tests/kernels/gemm_case.h"

using namespace mkernel;
using test::Cut;
using test::FabricOptions;
using test::FakeFabric;
using test::GemmCase;
using test::kGemmKinds;

namespace {

struct World {
  std::uint32_t nodes;
  std::uint32_t ranks;
};
constexpr World kWorlds[] = {{1, 1}, {1, 4}, {2, 2}, {2, 4}, {3, 2}, {4, 8}};
const ExecutorOptions kOneThread{std::chrono::minutes(2), 1};
const ExecutorOptions kTwoThreads{std::chrono::minutes(2), 2};

void check_launch(GemmCase& gemm, std::uint64_t seed, const ExecutorOptions& options) {
  CAPTURE(gemm.operation(0).signature());
  gemm.fill(seed);
  for (const Status& status : gemm.run(options)) REQUIRE_MESSAGE(status.ok(), status.to_string());
  CHECK(gemm.judge() == "");
  CHECK(gemm.fabric().error() == "");
}

}  // namespace

TEST_CASE("every operation is right on every world, for sizes that divide by nothing") {
  std::uint64_t seed = 1;
  for (const World world : kWorlds) {
    for (const OpKind kind : kGemmKinds) {
      for (const GemmShape& shape :
           {GemmShape{61, 37, 29}, GemmShape{61, 37, 29, DataType::kF16, Layout::kColumnMajor},
            GemmShape{3, 5, 7}, GemmShape{1, 1, 1}, GemmShape{517, 211, 29}}) {
        CAPTURE(world.nodes);
        CAPTURE(world.ranks);
        ++seed;
        GemmCase gemm(kind, shape, {.nodes = world.nodes, .ranks_per_node = world.ranks, .seed = seed});
        check_launch(gemm, seed, kOneThread);
      }
    }
  }
}

TEST_CASE("operations of a group take turns with one workspace, in any order, and some ranks are late") {
  constexpr int kLaunches = 120;
  for (const World world : {World{1, 4}, World{2, 2}, World{3, 1}}) {
    CAPTURE(world.nodes);
    auto fabric = std::make_shared<FakeFabric>(
        FabricOptions{.nodes = world.nodes, .ranks_per_node = world.ranks, .lanes = 9, .seed = world.nodes});
    std::vector<std::unique_ptr<GemmCase>> cases;
    std::uint64_t half = 0;
    for (const GemmShape& shape : {GemmShape{61, 37, 29}, GemmShape{3, 130, 70}}) {
      for (const OpKind kind : kGemmKinds) {
        cases.push_back(std::make_unique<GemmCase>(kind, shape, fabric));
        half = std::max(half, cases.back()->requirements().lent_bytes);
      }
    }
    const auto lent = fabric->symmetric(kernels::lent_workspace_bytes(half));
    std::uint32_t lane = 0;
    for (const auto& one : cases) {
      one->bind(lent, lane);
      lane += one->requirements().lanes;
      check_launch(*one, lane, kOneThread);
    }
    // What a launch writes is the same to the bit every time.
    std::vector<std::vector<std::vector<std::uint16_t>>> right;
    for (const auto& one : cases) right.push_back(one->outputs());
    const auto statuses = test::run_ranks(fabric->world(), [&](std::uint32_t rank) -> Status {
      std::mt19937 order(5), pause(rank);
      for (int i = 0; i < kLaunches; ++i) {
        const std::size_t which = order() % cases.size();
        if (pause() % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(pause() % 4));
        MK_RETURN_IF_ERROR(cases[which]->run_rank(rank, kOneThread));
        if (cases[which]->outputs()[rank] != right[which][rank])
          return {StatusCode::kInternal, "launch " + std::to_string(i) + ": " +
                                             cases[which]->operation(rank).signature() + " is wrong"};
      }
      return {};
    });
    for (const Status& status : statuses) CHECK_MESSAGE(status.ok(), status.to_string());
    CHECK(fabric->error() == "");
  }
}

TEST_CASE("few rows, whose owners share tiles: sent on by owners, or to all ranks, the same bits every run") {
  const auto check = [](OpKind kind, const World& world, const GemmShape& shape, const Cut& cut) {
    CAPTURE(world.nodes);
    CAPTURE(world.ranks);
    GemmCase gemm(kind, shape, {.nodes = world.nodes, .ranks_per_node = world.ranks, .seed = 9}, cut);
    check_launch(gemm, 3, kTwoThreads);
    const auto once = gemm.outputs();
    check_launch(gemm, 4, kTwoThreads);
    check_launch(gemm, 3, kTwoThreads);
    CHECK(gemm.outputs() == once);
    for (std::uint32_t rank = 1; kind == OpKind::kGemmAr && rank < world.nodes * world.ranks; ++rank)
      CHECK(once[rank] == once[0]);
  };
  for (const World world : {World{1, 2}, World{1, 3}, World{1, 8}, World{2, 2}, World{3, 2}, World{4, 4}}) {
    // Fewer rows than ranks, several owners in a tile, owners of which a cluster's two tiles hold one each.
    for (const GemmShape& shape :
         {GemmShape{2, 136, 24}, GemmShape{61, 200, 24, DataType::kF16, Layout::kColumnMajor},
          GemmShape{100 * world.nodes * world.ranks + 1, 70, 8}}) {
      for (const kernels::TileSize tile : {kernels::TileSize{128, 64, 1}, kernels::TileSize{128, 128, 2}}) {
        check(OpKind::kGemmRs, world, shape, {.tile = tile});
        check(OpKind::kGemmAr, world, shape, {.tile = tile, .to_all = false});
        if (world.nodes == 1) check(OpKind::kGemmAr, world, shape, {.tile = tile, .to_all = true});
      }
    }
  }
}

TEST_CASE("few rows of AG+GEMM, whose sources share tiles, times one b and several") {
  for (const World world : {World{1, 2}, World{1, 3}, World{1, 8}, World{2, 2}, World{3, 2}, World{4, 4}}) {
    CAPTURE(world.nodes);
    CAPTURE(world.ranks);
    // Fewer rows than ranks, several sources in a tile, several tiles, rows in parts.
    GemmShape several{61, 70, 72, DataType::kF16, Layout::kColumnMajor};
    several.more_n[0] = 200;
    several.more_n[1] = 1;
    for (const GemmShape& shape :
         {GemmShape{2, 136, 24}, GemmShape{301, 200, 24}, GemmShape{50, 5, 9000}, several}) {
      for (const kernels::TileSize tile : {kernels::TileSize{128, 64, 1}, kernels::TileSize{128, 128, 2}}) {
        GemmCase gemm(OpKind::kAgGemm, shape,
                      {.nodes = world.nodes, .ranks_per_node = world.ranks, .seed = 9}, {.tile = tile});
        for (std::uint64_t launch = 0; launch < 3; ++launch) check_launch(gemm, launch, kTwoThreads);
      }
    }
  }
}

TEST_CASE("a failed launch stops the other operations that take turns with its workspace") {
  auto fabric = std::make_shared<FakeFabric>(FabricOptions{.nodes = 1, .ranks_per_node = 2});
  GemmCase one(OpKind::kAgGemm, {61, 37, 29}, fabric), other(OpKind::kGemmRs, {61, 37, 29}, fabric);
  const auto lent = fabric->symmetric(kernels::lent_workspace_bytes(
      std::max(one.requirements().lent_bytes, other.requirements().lent_bytes)));
  one.bind(lent, 0);
  other.bind(lent, 0);
  check_launch(one, 1, kOneThread);
  check_launch(other, 2, kOneThread);
  one.fill(3);
  CHECK(one.run_rank(0, {std::chrono::milliseconds(50), 1}).code() == StatusCode::kDeadlineExceeded);
  const Status stopped = other.run_rank(0, kOneThread);
  CHECK(stopped.code() == StatusCode::kFailedPrecondition);
  CHECK(stopped.text() == "gemm_rs: a launch of another operation of this group failed");
}

TEST_CASE("the sizes that the executor chooses by itself") {
  for (const OpKind kind : kGemmKinds) {
    for (const World world : {World{1, 2}, World{2, 1}}) {
      GemmCase gemm(kind, {700, 1100, 40}, {.nodes = world.nodes, .ranks_per_node = world.ranks},
                    {.tile = std::nullopt});
      check_launch(gemm, 5, kTwoThreads);
    }
  }
}

TEST_CASE(
    "the tiles of the GPU's kernels, with narrow ones at the end and with tiles that pushing CTAs compute") {
  const GemmShape shape{1100, 264, 776};  // of every rank two blocks of the highest tiles; k in two parts
  const Cut cuts[] = {{.tile = kernels::Sm90Tile::k128x256, .comm_ctas = 4, .tail_tiles = 3, .late_tiles = 2},
                      {.tile = kernels::Sm90Tile::k128x128, .comm_ctas = 6, .tail_tiles = 5, .late_tiles = 0},
                      {.tile = kernels::Sm90Tile::k128x64, .comm_ctas = 4, .tail_tiles = 0, .late_tiles = 7},
                      {.tile = kernels::Sm90Tile::k256x128, .comm_ctas = 2}};
  for (const World world : {World{1, 3}, World{2, 2}}) {
    for (const Cut& cut : cuts) {
      GemmCase gemm(OpKind::kAgGemm, shape, {.nodes = world.nodes, .ranks_per_node = world.ranks, .seed = 4},
                    cut);
      check_launch(gemm, 5, kTwoThreads);
    }
  }
  for (const kernels::Sm90Tile tile : kernels::kSm90Tiles) {
    for (const OpKind kind : {OpKind::kGemmRs, OpKind::kGemmAr}) {
      GemmCase gemm(kind, {1500, 328, 40}, {.nodes = 2, .ranks_per_node = 2, .seed = 4}, {.tile = tile});
      check_launch(gemm, 6, kTwoThreads);
    }
  }
}

TEST_CASE("AG+GEMM multiplies the gathered rows with several b") {
  GemmShape three{150, 70, 776}, four{61, 5, 29, DataType::kF16, Layout::kColumnMajor};
  for (const auto& [at, n] : {std::pair{0, 200}, std::pair{1, 64}}) three.more_n[at] = n;
  for (const auto& [at, n] : {std::pair{0, 1}, std::pair{1, 130}, std::pair{2, 64}}) four.more_n[at] = n;
  const Cut cuts[] = {{},
                      {.tile = kernels::Sm90Tile::k128x256, .comm_ctas = 4, .tail_tiles = 1, .late_tiles = 1},
                      {.tile = kernels::Sm90Tile::k128x128, .comm_ctas = 6, .tail_tiles = 2, .late_tiles = 0},
                      {.tile = std::nullopt}};
  for (const World world : {World{1, 3}, World{2, 2}}) {
    for (const GemmShape& shape : {three, four}) {
      for (const Cut& cut : cuts) {
        GemmCase gemm(OpKind::kAgGemm, shape,
                      {.nodes = world.nodes, .ranks_per_node = world.ranks, .seed = 4}, cut);
        check_launch(gemm, 8, kTwoThreads);
      }
    }
  }
}

TEST_CASE("launches back to back, no barrier between them, new inputs each time") {
  for (const OpKind kind : kGemmKinds) {
    GemmCase gemm(kind, {50, 40, 24}, {.nodes = 3, .ranks_per_node = 2, .rings = 2, .seed = 11});
    // Ranks run ahead of each other within one thread per rank, so the inputs are constant over a series.
    for (std::uint64_t series = 0; series < 2; ++series) {
      gemm.fill(20 + series);
      const auto statuses = test::run_ranks(gemm.fabric().world(), [&](std::uint32_t rank) {
        for (int launch = 0; launch < 5; ++launch) MK_RETURN_IF_ERROR(gemm.run_rank(rank, kOneThread));
        return Status();
      });
      for (const Status& status : statuses) REQUIRE_MESSAGE(status.ok(), status.to_string());
      CHECK(gemm.judge() == "");
    }
    for (std::uint64_t launch = 0; launch < 5; ++launch) check_launch(gemm, 30 + launch, kTwoThreads);
  }
}

TEST_CASE("the same bits whatever the fabric does, and however many threads compute") {
  for (const OpKind kind : kGemmKinds) {
    const GemmShape shape{70, 45, 33};
    std::vector<std::vector<std::uint16_t>> first;
    for (const std::uint64_t seed : {0, 1, 99}) {
      GemmCase gemm(kind, shape, {.nodes = 2, .ranks_per_node = 3, .seed = seed});
      check_launch(gemm, 7, seed == 1 ? kTwoThreads : kOneThread);
      if (first.empty()) first = gemm.outputs();
      CHECK(first == gemm.outputs());
    }
  }
}

TEST_CASE("all ranks of a reduction hold the same sum") {
  GemmCase gemm(OpKind::kGemmAr, {33, 21, 17}, {.nodes = 2, .ranks_per_node = 2});
  check_launch(gemm, 3, kOneThread);
  for (const auto& output : gemm.outputs()) CHECK(output == gemm.outputs()[0]);
}

TEST_CASE("wire_bytes counts what crossed to other nodes, and no byte crosses needlessly") {
  const GemmShape shape{256, 128, 16};  // tiles and units divide it
  const FabricOptions options{.nodes = 2, .ranks_per_node = 2};
  const std::uint64_t a_bytes = 256 * 16 * 2, c_bytes = 256 * 128 * 2;
  // Per node: AG sends its half of a; RS its partial of the other half of c; AR that and its own half of c.
  const std::uint64_t expected[] = {a_bytes / 2, c_bytes / 2, c_bytes};
  for (std::size_t i = 0; i < 3; ++i) {
    GemmCase gemm(kGemmKinds[i], shape, options);
    for (std::uint64_t launch = 1; launch <= 2; ++launch) {
      check_launch(gemm, launch, kOneThread);
      for (std::uint32_t rank = 0; rank < 4; ++rank) {
        CHECK(gemm.operation(rank).wire_bytes() == expected[i] / 2);
        CHECK(gemm.fabric().wire_bytes(rank) == launch * expected[i] / 2);
      }
    }
  }
}

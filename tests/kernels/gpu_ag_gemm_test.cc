// What only AG+GEMM on the cuda executor has: rows that come in parts, narrow tiles at the end, CTAs that
// push, and several nodes.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/gpu_ranks.h"

using namespace mkernel;
using namespace mkernel::kernels;
using namespace mkernel::test;
using namespace std::chrono_literals;

TEST_CASE("any number of narrow tiles at the end, and rows that come in parts") {
  if (!peers_or_skip(1)) return;
  for (const std::int32_t tail : {0, 1, 1000}) {
    check_gpu_case<AgGemm>(2, {1000, 776, 4104}, {.tile = Sm90Tile::k128x256, .tail_tiles = tail}, 2);
    check_gpu_case<AgGemm>(2, {4097, 1032, 8200},
                           {.tile = Sm90Tile::k128x128, .comm_ctas = 4, .tail_tiles = tail}, 2);
  }
}

TEST_CASE("any number of pushing CTAs") {
  if (!peers_or_skip(1)) return;
  for (const std::int32_t comm_ctas : {2, 6, 30})
    check_gpu_case<AgGemm>(2, {3000, 512, 1024}, {.comm_ctas = comm_ctas});
}

TEST_CASE("any number of tiles for CTAs that are through with pushing") {
  if (!peers_or_skip(1)) return;
  for (const std::int32_t late : {1, 5, 1000}) {
    check_gpu_case<AgGemm>(2, {3000, 776, 4104},
                           {.tile = Sm90Tile::k128x256, .comm_ctas = 8, .late_tiles = late}, 2);
    check_gpu_case<AgGemm>(2, {4097, 1032, 1032},
                           {.tile = Sm90Tile::k128x64, .comm_ctas = 4, .tail_tiles = 0, .late_tiles = late});
  }
  check_gpu_case<AgGemm>(2, {4097, 1032, 8200},
                         {.tile = Sm90Tile::k128x128, .comm_ctas = 6, .tail_tiles = 9, .late_tiles = 7});
}

TEST_CASE("all of that in a shape small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  check_gpu_case<AgGemm>(
      2, {700, 264, 136},
      {.tile = Sm90Tile::k128x256, .comm_ctas = 4, .tail_tiles = 3, .late_tiles = 2, .sms = 12}, 2);
  check_gpu_case<AgGemm>(FabricOptions{.nodes = 2}, {300, 136, 72}, {.tile = Sm90Tile::k128x64, .sms = 8}, 2);
  check_gpu_case<AgGemm>(4, {61, 264, 136}, {.sms = 8}, 2);  // tiles that sources share
}

TEST_CASE(
    "few rows, whose sources share tiles: every tile, types, layouts, ranks without rows, rows in parts") {
  if (!peers_or_skip(1)) return;
  for (const int ranks : {2, 3, 4, 8}) {
    for (const Sm90Tile tile : kSm90Tiles)
      check_gpu_case<AgGemm>(ranks, {61, 1032, 520}, {.tile = tile, .comm_ctas = 2}, 2);
    check_gpu_case<AgGemm>(ranks, {ranks - 1, 264, 72});
    check_gpu_case<AgGemm>(ranks, {128, 776, 8200, DataType::kF16, Layout::kColumnMajor}, {}, 3);
    check_gpu_case<AgGemm>(ranks, {64, 2048, 4096}, {}, 20);
    check_gpu_case<AgGemm>(ranks, {500, 1032, 1032});
  }
  // Tiles for CTAs that are through with pushing, and narrow ones at the end.
  check_gpu_case<AgGemm>(4, {200, 776, 4104},
                         {.tile = Sm90Tile::k128x128, .comm_ctas = 6, .tail_tiles = 2, .late_tiles = 2}, 3);
}

TEST_CASE("clusters side by side: few rows and many, types, layouts, narrow tiles at the end") {
  if (!peers_or_skip(1)) return;
  AgGemmOptions options{.tile = Sm90Tile::k128x256, .cluster = Sm90Cluster::kSideBySide};
  for (const int ranks : {2, 4}) {
    for (const std::int64_t m : {1, 61, 128, 1000}) {
      check_gpu_case<AgGemm>(ranks, {m, 1288, 520}, options, 2);
      check_gpu_case<AgGemm>(ranks, {m, 776, 8200, DataType::kF16, Layout::kColumnMajor}, options, 3);
    }
    check_gpu_case<AgGemm>(ranks, {128, 2568, 4096, DataType::kBf16, Layout::kColumnMajor}, options, 3);
  }
  options.comm_ctas = 6;
  options.tail_tiles = 1;
  options.late_tiles = 2;
  check_gpu_case<AgGemm>(4, {200, 4104, 1032}, options, 3);
}

TEST_CASE("few rows over several nodes, whose sources share tiles") {
  if (!peers_or_skip(1)) return;
  for (const FabricOptions& nodes : {FabricOptions{.nodes = 2, .ranks_per_node = 2, .seed = 2},
                                     FabricOptions{.nodes = 3, .ranks_per_node = 1, .seed = 3}}) {
    for (const GemmShape& s : {GemmShape{2, 136, 72}, GemmShape{64, 1032, 8200},
                               GemmShape{130, 392, 1032, DataType::kF16, Layout::kColumnMajor}}) {
      check_gpu_case<AgGemm>(nodes, s, {}, 3);
    }
  }
}

namespace {

/// Nodes of one and of two ranks: a GPU each, or shared.
constexpr FabricOptions kNodes[] = {{.nodes = 2, .ranks_per_node = 1, .seed = 1},
                                    {.nodes = 2, .ranks_per_node = 2, .seed = 2},
                                    {.nodes = 3, .ranks_per_node = 1, .rings = 2, .seed = 3}};

}  // namespace

TEST_CASE("over several nodes: shapes, ranks without rows, rows in parts, a wire that delivers late") {
  if (!peers_or_skip(1)) return;
  for (const FabricOptions& nodes : kNodes) {
    CAPTURE(nodes.nodes);
    CAPTURE(nodes.ranks_per_node);
    for (const GemmShape& s : {GemmShape{1, 8, 8}, GemmShape{3, 384, 4096}, GemmShape{1000, 392, 1032},
                               GemmShape{4097, 264, 8200}, GemmShape{12345, 128, 264}}) {
      check_gpu_case<AgGemm>(nodes, s);
    }
    check_gpu_case<AgGemm>(nodes, {3000, 776, 4104, DataType::kF16, Layout::kColumnMajor},
                           {.tile = Sm90Tile::k128x256, .comm_ctas = 6, .tail_tiles = 7});
  }
}

TEST_CASE("over several nodes: launches behind each other, no host call and no barrier between") {
  if (!peers_or_skip(1)) return;
  constexpr int kLaunches = 50;
  for (const FabricOptions& nodes : kNodes) {
    GpuRanks all = gpu_ranks<AgGemm>(nodes, {1500, 256, 1032});
    for (int round = 0; round < 3; ++round) {
      require_ok(all.each([&](int rank) -> Status {
        for (int i = 0; i < kLaunches; ++i) {
          MK_RETURN_IF_ERROR(all.fill(rank, round * kLaunches + i));
          MK_RETURN_IF_ERROR(
              all.operation(rank).enqueue(all.arguments(rank), kGpuOptions, all.stream(rank).get()));
        }
        MK_RETURN_IF_ERROR(all.stream(rank).synchronize());
        return all.operation(rank).status();
      }));
      require_ok(all.each([&](int rank) { return all.verify(rank); }));  // the last one
    }
    CHECK(all.world().fabric().error() == "");
    const std::uint64_t sent = all.world().fabric().wire_bytes(0);
    CHECK(sent == 3 * kLaunches * all.operation(0).wire_bytes());
    CHECK(sent > 0);
  }
}

TEST_CASE("a rank of another node that does not come is named by whoever waits for it") {
  if (!peers_or_skip(1)) return;
  for (const FabricOptions& nodes : kNodes) {
    GpuRanks all = gpu_ranks<AgGemm>(nodes, {2048, 512, 1024});
    const int missing = all.size() - 1;
    const std::string name = "rank " + std::to_string(missing);
    std::vector<Status> missed(all.size());
    require_ok(all.each([&](int rank) -> Status {
      MK_RETURN_IF_ERROR(all.fill(rank, 1));
      return all.stream(rank).synchronize();
    }));
    // At once, so that nobody misses one of the others.
    require_ok(all.each([&](int rank) -> Status {
      if (rank != missing) missed[rank] = all.run(rank, {.deadline = 400ms});
      return {};
    }));
    for (int rank = 0; rank < missing; ++rank) {
      CHECK(missed[rank].code() == StatusCode::kDeadlineExceeded);
      CHECK_MESSAGE(missed[rank].text().find(name) != std::string::npos, missed[rank].text());
    }
    // Its rail peer on the first node.
    const auto& rail = missed[(missing % nodes.ranks_per_node)];
    CHECK_MESSAGE(rail.text().find("inter_recv: arrivals of " + name + " lane 0") != std::string::npos,
                  rail.text());
  }
}

// What AG+GEMM, GEMM+RS and GEMM+AR on the cuda executor have in common, with a GPU for every rank or shared:
// random inputs, poisoned outputs, every element against fp64; replayed by graphs, and with a rank that does
// not come.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "tests/support/gpu_held_stream.h"
#include "tests/support/gpu_ranks.h"
#include "tests/support/gpu_two_launches.h"

using namespace mkernel;
using namespace mkernel::kernels;
using namespace mkernel::test;
using namespace std::chrono_literals;

TEST_CASE_TEMPLATE("every tile, type and layout, with tails in all dimensions", Op, AgGemm, GemmRs, GemmAr) {
  if (!peers_or_skip(1)) return;
  for (const Sm90Tile tile : kSm90Tiles) {
    for (const DataType type : {DataType::kBf16, DataType::kF16}) {
      for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
        check_gpu_case<Op>(node_ranks(), {1000, 392, 1032, type, layout}, {.tile = tile}, 2);
      }
    }
  }
}

TEST_CASE_TEMPLATE("a shape small enough for tools that watch every access", Op, AgGemm, GemmRs, GemmAr) {
  if (!peers_or_skip(1)) return;
  check_gpu_case<Op>(2, {300, 136, 72}, {.tile = Sm90Tile::k128x64, .sms = 8}, 2);
}

TEST_CASE_TEMPLATE("shapes: few rows, ranks without rows, one row, narrow, long", Op, AgGemm, GemmRs,
                   GemmAr) {
  if (!peers_or_skip(1)) return;
  for (const GemmShape& s :
       {GemmShape{1, 8, 8}, GemmShape{2, 64, 64}, GemmShape{3, 384, 4096}, GemmShape{3, 4096, 384},
        GemmShape{64, 4096, 1024}, GemmShape{130, 4096, 1024}, GemmShape{500, 2048, 1024},
        GemmShape{4097, 384, 512}, GemmShape{12345, 384, 256}, GemmShape{256, 128, 20000},
        GemmShape{2048, 2048, 2048}, GemmShape{5000, 3000, 264}}) {
    check_gpu_case<Op>(node_ranks(), s);
  }
}

TEST_CASE_TEMPLATE("a rank alone, three, four", Op, AgGemm, GemmRs, GemmAr) {
  if (!peers_or_skip(1)) return;
  for (const GemmShape& s : {GemmShape{1, 8, 8}, GemmShape{1000, 384, 512}}) check_gpu_case<Op>(1, s);
  for (const int ranks : {3, 4}) {
    for (const GemmShape& s :
         {GemmShape{3000, 512, 1024}, GemmShape{4097, 1032, 520}, GemmShape{3, 384, 256}})
      check_gpu_case<Op>(ranks, s);
  }
}

TEST_CASE_TEMPLATE("groups of eight, of sixteen and of thirty, on what multiprocessors they leave each other",
                   Op, AgGemm, GemmRs, GemmAr) {
  if (!peers_or_skip(1)) return;
  for (const int ranks : {8, 16}) {
    for (const GemmShape& s : {GemmShape{3000, 512, 256}, GemmShape{5, 136, 72}, GemmShape{64, 1032, 520},
                               GemmShape{2048, 1032, 520}})
      check_gpu_case<Op>(ranks, s);
  }
  for (const auto& [nodes, per_node] : {std::pair{2U, 4U}, {2U, 8U}, {8U, 2U}, {16U, 1U}, {6U, 5U}}) {
    for (const GemmShape& s : {GemmShape{3000, 512, 256}, GemmShape{5, 136, 72}})
      check_gpu_case<Op>(FabricOptions{.nodes = nodes, .ranks_per_node = per_node}, s);
  }
}

namespace {

/// The three operations in one world, with one workspace to take turns with. GEMM+AR also with few rows: on
/// one node its slots are marked and lie elsewhere, and it takes turns all the same.
struct Shared {
  Shared(const FabricOptions& fabric, std::int32_t sms)
      : world(require(GpuWorld::make(fabric))),
        operations{gpu_ranks<AgGemm>(world, {1500, 520, 264}, {.sms = sms}),
                   gpu_ranks<GemmRs>(world, {700, 392, 1032}, {.sms = sms}),
                   gpu_ranks<GemmAr>(world, {300, 1032, 136}, {.sms = sms}),
                   gpu_ranks<GemmAr>(world, {5, 1032, 136}, {.sms = sms})} {
    std::uint64_t half = 0;
    for (GpuRanks& one : operations) half = std::max(half, one.operation(0).requirements().lent_bytes);
    const auto lent = require(world->symmetric(lent_workspace_bytes(half)));
    std::uint32_t lane = 0;
    for (GpuRanks& one : operations) {
      one.bind(lent, lane);
      lane += one.operation(0).requirements().lanes;
    }
  }
  std::shared_ptr<GpuWorld> world;
  std::array<GpuRanks, 4> operations;
};

}  // namespace

TEST_CASE("operations of a group take turns with one workspace, queued in any order on one stream") {
  if (!peers_or_skip(1)) return;
  constexpr int kRounds = 20, kLaunches = 8;
  for (const FabricOptions& fabric :
       {FabricOptions{.ranks_per_node = 4}, FabricOptions{.nodes = 2, .ranks_per_node = 2},
        FabricOptions{.nodes = 3, .ranks_per_node = 1}}) {
    Shared shared(fabric, 0);
    for (int round = 0; round < kRounds; ++round) {
      require_ok(shared.world->each([&](int rank) -> Status {
        for (GpuRanks& one : shared.operations) {
          MK_RETURN_IF_ERROR(one.fill(rank, round));
          MK_RETURN_IF_ERROR(one.stream(rank).synchronize());
        }
        std::mt19937 order(round);
        const bench::GpuStream& stream = shared.operations[0].stream(rank);
        for (int i = 0; i < kLaunches; ++i) {
          // Every one at least once, and some twice in a row.
          GpuRanks& one = shared.operations[i < 4 ? i : order() % 4];
          MK_RETURN_IF_ERROR(one.operation(rank).enqueue(one.arguments(rank), kGpuOptions, stream.get()));
        }
        MK_RETURN_IF_ERROR(stream.synchronize());
        for (GpuRanks& one : shared.operations) MK_RETURN_IF_ERROR(one.operation(rank).status());
        return {};
      }));
      require_ok(shared.world->each([&](int rank) -> Status {
        for (GpuRanks& one : shared.operations) MK_RETURN_IF_ERROR(one.verify(rank));
        return {};
      }));
    }
    CHECK(shared.world->fabric().error() == "");
  }
}

TEST_CASE("two launches of a group at the same time are told, and stop those behind them") {
  if (!peers_or_skip(1)) return;
  auto world = std::shared_ptr<GpuWorld>(require(GpuWorld::make(FabricOptions{.ranks_per_node = 1})));
  // They begin together and must not end together: who ends later finds that the other has ended.
  GpuRanks one = gpu_ranks<AgGemm>(world, {8192, 4096, 4096}, {.sms = 40}),
           other = gpu_ranks<AgGemm>(world, {8192, 4096, 2048}, {.sms = 40});
  const auto lent =
      require(world->symmetric(lent_workspace_bytes(one.operation(0).requirements().lent_bytes)));
  one.bind(lent, 0);
  other.bind(lent, 0);
  for (GpuRanks* each : {&one, &other}) {
    require_ok(each->fill(0, 1));
    require_ok(each->stream(0).synchronize());
  }
  // Both wait on the GPU, since on a busy host the first would be over before the second is queued.
  HeldStream held(one.stream(0).get()), other_held(other.stream(0).get());
  require_ok(held.status());
  require_ok(other_held.status());
  require_ok(one.operation(0).enqueue(one.arguments(0), kGpuOptions, one.stream(0).get()));
  require_ok(other.operation(0).enqueue(other.arguments(0), kGpuOptions, other.stream(0).get()));
  held.let_go();
  other_held.let_go();
  require_ok(one.stream(0).synchronize());
  require_ok(other.stream(0).synchronize());
  const std::string texts = one.operation(0).status().text() + other.operation(0).status().text();
  CHECK_MESSAGE(texts.find("Launches of a group must follow each other") != std::string::npos, texts);
  CHECK(one.operation(0).enqueue(one.arguments(0), kGpuOptions, one.stream(0).get()).code() ==
        StatusCode::kFailedPrecondition);
}

TEST_CASE("two launches of a group that end in the same moment are reported, every time") {
  if (!peers_or_skip(1)) return;
  auto world = std::shared_ptr<GpuWorld>(require(GpuWorld::make(FabricOptions{.ranks_per_node = 1})));
  // Both do the same work with as many multiprocessors, so that they end within microseconds of each other.
  const GemmShape shape{4096, 2048, 2048};
  const std::int32_t sms = half_of_the_sms();
  for (int round = 0; round < 32; ++round) {
    CAPTURE(round);
    GpuRanks one = gpu_ranks<AgGemm>(world, shape, {.sms = sms}),
             other = gpu_ranks<AgGemm>(world, shape, {.sms = sms});
    const auto lent =
        require(world->symmetric(lent_workspace_bytes(one.operation(0).requirements().lent_bytes)));
    for (GpuRanks* each : {&one, &other}) {
      each->bind(lent, 0);
      require_ok(each->fill(0, 1));
      require_ok(each->stream(0).synchronize());
    }
    const auto launch_of = [](GpuRanks& ranks) {
      return [&ranks](CUstream_st* stream) {
        return ranks.operation(0).enqueue(ranks.arguments(0), kGpuOptions, stream);
      };
    };
    launch_at_the_same_time(launch_of(one), launch_of(other));
    const std::string texts = one.operation(0).status().text() + other.operation(0).status().text();
    CHECK_MESSAGE(texts.find("two launches with the shared workspace of the group ran at the same time") !=
                      std::string::npos,
                  texts);
  }
}

TEST_CASE_TEMPLATE("captured in a graph and replayed with new operands, no host call between", Op, AgGemm,
                   GemmRs, GemmAr) {
  if (!peers_or_skip(1)) return;
  for (const GemmShape& s : {GemmShape{1024, 256, 512}, GemmShape{64, 512, 512}})
    gpu_ranks<Op>(node_ranks(), s).check_replays(10, 100);
}

TEST_CASE_TEMPLATE("a rank that does not come is named within the deadline, and the GPU is usable at once",
                   Op, AgGemm, GemmRs, GemmAr) {
  if (!peers_or_skip(1)) return;
  const GemmShape s{2048, 512, 1024};
  GpuRanks all = gpu_ranks<Op>(2, s);
  require_ok(all.each([&](int rank) -> Status {
    if (rank != 0) return {};
    MK_RETURN_IF_ERROR(all.fill(rank, 1));
    const auto begin = std::chrono::steady_clock::now();
    const Status missed = all.run(rank, {.deadline = 500ms});
    CHECK(std::chrono::steady_clock::now() - begin < 5s);
    CHECK(missed.code() == StatusCode::kDeadlineExceeded);
    CHECK_MESSAGE(missed.text().find("of rank 1") != std::string::npos, missed.text());
    CHECK(all.run(rank).code() == StatusCode::kFailedPrecondition);
    return {};
  }));
  check_gpu_case<Op>(2, s);
}

TEST_CASE_TEMPLATE("a group that fails ends the launch long before the deadline, with the group's reason", Op,
                   AgGemm, GemmRs, GemmAr) {
  if (!peers_or_skip(1)) return;
  // Of a single row the last rank is the only one that has it, and waits for nothing but the empty chunks and
  // words of the other: for AG+GEMM one thread beside the poller.
  for (const auto& [s, alone] :
       {std::pair{GemmShape{2048, 512, 1024}, 0}, std::pair{GemmShape{1, 8, 8}, 1}}) {
    GpuRanks all = gpu_ranks<Op>(2, s);
    require_ok(all.each([&](int rank) -> Status {
      if (rank != alone) return {};
      MK_RETURN_IF_ERROR(all.fill(rank, 1));
      MK_RETURN_IF_ERROR(
          all.operation(rank).enqueue(all.arguments(rank), {.deadline = 20s}, all.stream(rank).get()));
      // The launch is under way, and everything that does not wait has ended.
      std::this_thread::sleep_for(100ms);
      all.world().fail_group(rank, static_cast<std::uint32_t>(StatusCode::kUnavailable), "node b is gone");
      const auto begin = std::chrono::steady_clock::now();
      MK_RETURN_IF_ERROR(all.stream(rank).synchronize());
      CHECK(std::chrono::steady_clock::now() - begin < 5s);
      const Status failed = all.operation(rank).status();
      CHECK(failed.code() == StatusCode::kUnavailable);
      CHECK_MESSAGE(failed.text().find("node b is gone") != std::string::npos, failed.text());
      return {};
    }));
  }
}

TEST_CASE_TEMPLATE("links that are modelled take their time, and what comes over them is right", Op, AgGemm,
                   GemmRs, GemmAr) {
  if (!peers_or_skip(1)) return;
  // A neighbour gets half of the operand or of the product, 1 MiB or 0.5: 0.25 GB/s are 2 ms at least.
  GpuRanks all = gpu_ranks<Op>(2, {1024, 512, 1024}, {.link_gbytes = 0.25});
  all.check(3);
  require_ok(all.each([&](int rank) -> Status {
    MK_RETURN_IF_ERROR(all.fill(rank, 1));
    MK_RETURN_IF_ERROR(all.stream(rank).synchronize());
    const auto begin = std::chrono::steady_clock::now();
    MK_RETURN_IF_ERROR(all.run(rank));
    CHECK(std::chrono::steady_clock::now() - begin > 2ms);
    return all.verify(rank);
  }));
}

TEST_CASE_TEMPLATE("run() and status() wait for nobody else's work on the default stream", Op, AgGemm, GemmRs,
                   GemmAr) {
  if (!peers_or_skip(1)) return;
  GpuRanks all = gpu_ranks<Op>(1, {512, 256, 256});
  require_ok(all.each([&](int rank) -> Status {
    MK_RETURN_IF_ERROR(all.fill(rank, 1));
    MK_RETURN_IF_ERROR(all.stream(rank).synchronize());
    const HeldStream held(nullptr);
    MK_RETURN_IF_ERROR(held.status());
    const Status ran = all.operation(rank).run(all.arguments(rank), kGpuOptions);
    CHECK(held.holds());
    return ran;
  }));
  require_ok(all.each([&](int rank) { return all.verify(rank); }));
}

TEST_CASE_TEMPLATE("a deadline beyond what a launch is made for is refused by name", Op, AgGemm, GemmRs,
                   GemmAr) {
  if (!peers_or_skip(1)) return;
  GpuRanks all = gpu_ranks<Op>(1, {64, 64, 64});
  require_ok(all.each([&](int rank) -> Status {
    for (const auto deadline : {std::chrono::milliseconds(31min), std::chrono::milliseconds(0), -1ms}) {
      const Status refused =
          all.operation(rank).enqueue(all.arguments(rank), {.deadline = deadline}, all.stream(rank).get());
      CHECK(refused.code() == StatusCode::kInvalidArgument);
      const std::string text = "deadline = " + std::to_string(deadline.count()) + " ms, must be 1..1800000";
      CHECK_MESSAGE(refused.text().find(text) != std::string::npos, refused.text());
    }
    return {};
  }));
}

TEST_CASE_TEMPLATE("a result that is not aligned is refused before anything is queued", Op, AgGemm, GemmRs,
                   GemmAr) {
  if (!peers_or_skip(1)) return;
  GpuRanks all = gpu_ranks<Op>(2, {64, 64, 64});
  require_ok(all.each([&](int rank) -> Status {
    GemmArguments off = all.arguments(rank);
    off.c = static_cast<std::byte*>(off.c) + 8;
    const Status refused = all.operation(rank).enqueue(off, kGpuOptions, nullptr);
    CHECK(refused.code() == StatusCode::kInvalidArgument);
    CHECK_MESSAGE(refused.text().find("matrix c: address modulo 16 is 8") != std::string::npos,
                  refused.text());
    return {};
  }));
}

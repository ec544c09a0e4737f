// The mixture of experts on the cuda executor, with a GPU for every rank or shared: random inputs, poisoned
// outputs, every element against fp64, what every rank refuses, launches queued and replayed by graphs.
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/gpu_moe_ranks.h"
#include "tests/support/require.h"

namespace mkernel::test {
namespace {

using namespace std::chrono_literals;
using Outputs = std::vector<GpuMoeRanks::Tensor>;

/// No size is a multiple of a tile's, no number of experts one of a world's.
constexpr MoeShape kOdd{
    .max_tokens = 60, .hidden = 72, .n = 264, .intermediate = 136, .experts = 11, .topk = 3};
constexpr MoeShape kTiny{
    .max_tokens = 20, .hidden = 72, .n = 88, .intermediate = 40, .experts = 6, .topk = 2};

/// `launches` launches with other inputs, routings and numbers of tokens each, on some ranks none; the
/// outputs of all.
Outputs run_launches(GpuMoeRanks& ranks, int launches) {
  Outputs all;
  const MoeShape& shape = ranks.shape();
  for (int launch = 0; launch < launches; ++launch) {
    CAPTURE(launch);
    const auto seed = 100 + static_cast<std::uint64_t>(launch);
    const auto tokens = [&](std::uint32_t rank) -> std::int64_t {
      if ((rank + static_cast<std::uint32_t>(launch)) % 4 == 3) return 0;
      return launch == 0 ? shape.max_tokens : (7 * (rank + 1) + 13 * launch) % (shape.max_tokens + 1);
    };
    const Router router = launch % 2 == 0 ? zipf_router(shape, seed) : random_router(shape, seed);
    for (auto& y : ranks.run_checked(ranks.inputs(router, tokens, seed))) all.push_back(std::move(y));
  }
  return all;
}

Outputs run_launches(const FabricOptions& fabric, const MoeShape& shape, int launches,
                     const kernels::MoeOptions& options = {}) {
  CAPTURE(fabric.nodes);
  CAPTURE(fabric.ranks_per_node);
  GpuMoeRanks ranks(fabric, shape, options);
  return run_launches(ranks, launches);
}

}  // namespace

TEST_CASE("moe: both types, both layouts, one product and two, w1 whole and apart, on one rank and several") {
  if (!peers_or_skip(1)) return;
  for (const std::uint32_t world : {1U, 2U, 4U}) {
    for (const DataType dtype : {DataType::kBf16, DataType::kF16}) {
      for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
        for (const std::int64_t intermediate : {std::int64_t{0}, kOdd.intermediate}) {
          MoeShape shape = kOdd;
          shape.dtype = dtype;
          shape.w_layout = layout;
          shape.intermediate = intermediate;
          GpuMoeRanks ranks({.ranks_per_node = world}, shape);
          const Outputs whole = run_launches(ranks, 2);
          if (intermediate == 0) continue;
          ranks.set_w1_up(true);
          CHECK(run_launches(ranks, 2) == whole);
          ranks.set_w1_up(false);
          CHECK(run_launches(ranks, 1) == Outputs(whole.begin(), whole.begin() + world));
        }
      }
    }
  }
}

TEST_CASE("moe: a shape small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  run_launches({.ranks_per_node = 2}, kTiny, 2);
}

TEST_CASE("moe: several blocks of rows, an odd number of columns of tiles, several steps along k") {
  if (!peers_or_skip(1)) return;
  const MoeShape wide{
      .max_tokens = 300, .hidden = 200, .n = 520, .intermediate = 264, .experts = 3, .topk = 2};
  run_launches({.ranks_per_node = 2}, wide, 2);
  MoeShape single = wide;
  single.intermediate = 0;
  run_launches({.ranks_per_node = 1}, single, 2);
}

TEST_CASE("moe: several nodes, also with ranks that are not numbered node by node") {
  if (!peers_or_skip(1)) return;
  for (const auto& [nodes, ranks] : {std::pair{2U, 1U}, {2U, 2U}, {3U, 1U}, {4U, 1U}}) {
    for (const std::int64_t intermediate : {std::int64_t{0}, kOdd.intermediate}) {
      MoeShape shape = kOdd;
      shape.intermediate = intermediate;
      run_launches({.nodes = nodes, .ranks_per_node = ranks}, shape, 3);
    }
  }
  for (const auto& [nodes, ranks] : {std::pair{2U, 2U}, {2U, 3U}})
    run_launches({.nodes = nodes, .ranks_per_node = ranks, .across_nodes = true}, kOdd, 2);
}

TEST_CASE("moe: a world of eight on multiprocessors that its ranks leave each other") {
  if (!peers_or_skip(1)) return;
  run_launches({.ranks_per_node = 8}, kTiny, 3);
  run_launches({.nodes = 2, .ranks_per_node = 4}, kTiny, 3);
}

TEST_CASE("moe: fewer experts than ranks, all experts chosen, many of them, the longest top-k") {
  if (!peers_or_skip(1)) return;
  run_launches({.ranks_per_node = 4}, {.max_tokens = 20, .hidden = 8, .n = 8, .experts = 3, .topk = 3}, 2);
  run_launches({.nodes = 2, .ranks_per_node = 2},
               {.max_tokens = 20, .hidden = 8, .n = 8, .intermediate = 8, .experts = 2, .topk = 1}, 2);
  run_launches({.ranks_per_node = 2},
               {.max_tokens = 25, .hidden = 64, .n = 72, .intermediate = 32, .experts = 61, .topk = 16}, 2);
  run_launches({.ranks_per_node = 2}, {.max_tokens = 40, .hidden = 16, .n = 16, .experts = 1024, .topk = 8},
               2);
}

TEST_CASE("moe: any skew: all tokens to one expert, one token in the world, none at all") {
  if (!peers_or_skip(1)) return;
  const MoeShape shape{.max_tokens = 150, .hidden = 64, .n = 64, .intermediate = 72, .experts = 8, .topk = 1};
  for (const FabricOptions& fabric :
       {FabricOptions{.ranks_per_node = 4}, FabricOptions{.nodes = 2, .ranks_per_node = 1}}) {
    GpuMoeRanks ranks(fabric, shape);
    for (const std::int32_t expert : {0, 7}) {
      ranks.run_checked(ranks.inputs(
          one_expert(expert), [](std::uint32_t rank) { return 150 - 40 * rank; }, 6));
      for (const std::uint32_t only : {3U, 0U, 9U}) {
        ranks.run_checked(ranks.inputs(
            one_expert(expert), [&](std::uint32_t rank) { return rank == only ? 1 : 0; }, 7));
      }
    }
  }
}

TEST_CASE("moe: the same bits however many CTAs dispatch and sum, and however tokens are cut") {
  if (!peers_or_skip(1)) return;
  for (const FabricOptions& fabric :
       {FabricOptions{.ranks_per_node = 2}, FabricOptions{.nodes = 2, .ranks_per_node = 1}}) {
    const Outputs first = run_launches(fabric, kOdd, 2);
    for (const kernels::MoeOptions& options :
         {kernels::MoeOptions{.dispatch_ctas = 2, .pieces = 1},
          kernels::MoeOptions{.dispatch_ctas = 12, .pieces = 7, .summing_ctas = 2},
          kernels::MoeOptions{.dispatch_ctas = 8, .summing_ctas = 8},
          kernels::MoeOptions{.dispatch_ctas = 2, .sms = 4}})
      CHECK(run_launches(fabric, kOdd, 2, options) == first);
  }
}

TEST_CASE(
    "moe: bad routing on one rank is refused on all with the same words, and the next launch is right") {
  if (!peers_or_skip(1)) return;
  const MoeShape shape{.max_tokens = 4, .hidden = 8, .n = 8, .experts = 4, .topk = 2};
  for (const auto& [nodes, per_node] : {std::pair{1U, 1U}, {1U, 3U}, {2U, 1U}}) {
    GpuMoeRanks ranks({.nodes = nodes, .ranks_per_node = per_node}, shape);
    const auto good = ranks.inputs(random_router(shape, 1), 4, 1);
    const std::size_t last = good.size() - 1;
    const std::string who = "moe: rank " + std::to_string(last) + ": ";
    const auto refused = [&](const std::function<void(MoeInput&)>& spoil, const std::string& text) {
      auto inputs = good;
      spoil(inputs[last]);
      ranks.run_refused(inputs, StatusCode::kInvalidArgument, text);
      ranks.run_checked(good);
    };
    refused([](MoeInput& input) { input.topk[5] = 4; }, who + "topk[2, 1] = 4, but it must be 0..3");
    refused([](MoeInput& input) { input.topk[0] = -1; }, who + "topk[0, 0] = -1, but it must be 0..3");
    const std::string twice = std::to_string(good[last].topk[6]);
    refused([](MoeInput& input) { input.topk[7] = input.topk[6]; },
            who + "topk[3, 1] = " + twice + ", an expert that this token has already");
    refused([](MoeInput& input) { input.weights[2] = std::numeric_limits<float>::quiet_NaN(); },
            who + "weights[1, 0] is not a number");
    // Of several problems that of the lowest rank, and there of the lowest entry; twice in a row.
    auto inputs = good;
    inputs[0].topk[3] = 9, inputs[0].topk[6] = -7, inputs[last].topk[1] = 8;
    const std::string first = last == 0 ? "topk[0, 1] = 8" : "topk[1, 1] = 9";
    for (int launch = 0; launch < 2; ++launch) {
      ranks.run_refused(inputs, StatusCode::kInvalidArgument,
                        "moe: rank 0: " + first + ", but it must be 0..3");
    }
    ranks.run_checked(good);
  }
}

TEST_CASE("moe: more rows than the capacity are refused on all ranks, and the next launch is right") {
  if (!peers_or_skip(1)) return;
  // Every rank has one expert; 128 rows fit.
  const MoeShape shape{
      .max_tokens = 40, .hidden = 8, .n = 8, .intermediate = 8, .experts = 4, .topk = 1, .capacity = 100};
  for (const FabricOptions& fabric :
       {FabricOptions{.ranks_per_node = 4}, FabricOptions{.nodes = 2, .ranks_per_node = 2}}) {
    GpuMoeRanks ranks(fabric, shape);
    ranks.run_checked(ranks.inputs(one_expert(2), 32, 1));
    ranks.run_refused(ranks.inputs(one_expert(2), 33, 2), StatusCode::kResourceExhausted,
                      "moe: expert 2 has 132 rows, with which rank 2 needs 192 rows with padding, but its "
                      "capacity is 128");
    ranks.run_checked(ranks.inputs(random_router(shape, 4), 40, 3));
  }
}

TEST_CASE("moe: of launches queued one behind the other a refused one stops none, and is told once") {
  if (!peers_or_skip(1)) return;
  constexpr std::size_t kQueued = 6, kBad = 2;
  GpuMoeRanks ranks({.ranks_per_node = 2}, kOdd);
  std::vector<std::vector<MoeInput>> inputs;  // by launch, by rank
  for (std::size_t launch = 0; launch < kQueued; ++launch) {
    const auto tokens = static_cast<std::int64_t>(10 * launch + 3);
    inputs.push_back(ranks.inputs(zipf_router(kOdd, launch), tokens, launch));
  }
  inputs[kBad][1].topk[4] = kOdd.experts;
  std::vector<std::vector<MoeOnGpu>> operands(2);  // by rank, by launch
  require_ok(ranks.each([&](int rank) -> Status {
    auto& mine = operands[static_cast<std::size_t>(rank)];
    for (std::size_t launch = 0; launch < kQueued; ++launch) {
      auto made = ranks.allocate();
      if (!made.ok()) return made.status();
      mine.push_back(std::move(*made));
      MK_RETURN_IF_ERROR(ranks.fill(rank, inputs[launch][static_cast<std::size_t>(rank)], mine.back()));
    }
    return ranks.stream(rank).synchronize();
  }));
  std::vector<std::string> said(2);
  require_ok(ranks.each([&](int rank) -> Status {
    for (std::size_t launch = 0; launch < kQueued; ++launch) {
      const auto at = static_cast<std::size_t>(rank);
      MK_RETURN_IF_ERROR(ranks.enqueue(rank, operands[at][launch], inputs[launch][at].tokens));
    }
    MK_RETURN_IF_ERROR(ranks.stream(rank).synchronize());
    said[static_cast<std::size_t>(rank)] = ranks.operation(rank).status().to_string();
    return {};
  }));
  for (int rank = 0; rank < 2; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    CHECK(said[at] == "INVALID_ARGUMENT: moe: rank 1: topk[1, 1] = 11, but it must be 0..10");
    CHECK(ranks.operation(rank).refused());
    CHECK(ranks.operation(rank).status().to_string() == "OK");
    CHECK_FALSE(ranks.operation(rank).refused());
  }
  require_ok(ranks.each([&](int rank) -> Status {
    const auto at = static_cast<std::size_t>(rank);
    for (std::size_t launch = 0; launch < kQueued; ++launch) {
      const Status seen = launch == kBad
                              ? ranks.output(rank, operands[at][launch], 0).status()
                              : ranks.verified(rank, operands[at][launch], inputs[launch][at]).status();
      MK_RETURN_IF_ERROR(seen.with_context("launch " + std::to_string(launch)));
    }
    return {};
  }));
}

namespace {

/// Everything but y, which is poisoned.
Status copy_inputs(const GpuMoeRanks& ranks, int rank, const MoeOnGpu& to, const MoeOnGpu& from) {
  for (const auto part : {&MoeOnGpu::x, &MoeOnGpu::topk, &MoeOnGpu::weights})
    MK_RETURN_IF_ERROR(copy_on_gpu(to.*part, from.*part, ranks.stream(rank)));
  return bench::poison(to.y, ranks.stream(rank).get());
}

/// A captured launch is replayed for each of so many inputs, with nothing but the stream between them; then
/// all outputs are verified.
void replay(const FabricOptions& fabric, int rounds, std::size_t replays) {
  CAPTURE(fabric.nodes);
  GpuMoeRanks ranks(fabric, kTiny);
  const auto world = static_cast<std::size_t>(ranks.size());
  std::vector<std::optional<bench::GpuGraph>> graphs(world);
  std::vector<std::vector<MoeOnGpu>> log(world);  // by rank, by replay
  require_ok(ranks.each([&](int rank) -> Status {
    const auto at = static_cast<std::size_t>(rank);
    for (std::size_t i = 0; i < replays; ++i) {
      auto made = ranks.allocate();
      if (!made.ok()) return made.status();
      log[at].push_back(std::move(*made));
    }
    auto graph = bench::GpuGraph::capture(
        ranks.stream(rank), [&] { return ranks.enqueue(rank, ranks.operands(rank), kTiny.max_tokens); });
    if (!graph.ok()) return graph.status();
    graphs[at] = std::move(*graph);
    return {};
  }));
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    std::vector<std::vector<MoeInput>> inputs;  // by replay, by rank
    for (std::size_t i = 0; i < replays; ++i) {
      const std::uint64_t seed = static_cast<std::uint64_t>(round) * replays + i;
      const Router router = i % 2 == 0 ? zipf_router(kTiny, seed) : random_router(kTiny, seed);
      inputs.push_back(ranks.inputs(router, kTiny.max_tokens, seed));
    }
    require_ok(ranks.each([&](int rank) -> Status {
      const auto at = static_cast<std::size_t>(rank);
      for (std::size_t i = 0; i < replays; ++i)
        MK_RETURN_IF_ERROR(ranks.fill(rank, inputs[i][at], log[at][i]));
      MK_RETURN_IF_ERROR(ranks.stream(rank).synchronize());
      for (const MoeOnGpu& logged : log[at]) {
        MK_RETURN_IF_ERROR(copy_inputs(ranks, rank, ranks.operands(rank), logged));
        MK_RETURN_IF_ERROR(graphs[at]->launch(ranks.stream(rank)));
        MK_RETURN_IF_ERROR(copy_on_gpu(logged.y, ranks.operands(rank).y, ranks.stream(rank)));
      }
      MK_RETURN_IF_ERROR(ranks.stream(rank).synchronize());
      return ranks.operation(rank).status();
    }));
    require_ok(ranks.each([&](int rank) -> Status {
      const auto at = static_cast<std::size_t>(rank);
      for (std::size_t i = 0; i < replays; ++i) {
        MK_RETURN_IF_ERROR(ranks.verified(rank, log[at][i], inputs[i][at])
                               .status()
                               .with_context("replay " + std::to_string(i)));
      }
      return {};
    }));
  }
}

}  // namespace

TEST_CASE("moe: captured in a graph and replayed with new tokens and routing, no host call between") {
  if (!peers_or_skip(1)) return;
  replay({.ranks_per_node = static_cast<std::uint32_t>(node_ranks())}, 10, 100);
  replay({.nodes = 2, .ranks_per_node = 1}, 1, 100);
}

TEST_CASE("moe: a rank that does not come is named within the deadline, and the GPU is usable at once") {
  if (!peers_or_skip(1)) return;
  {
    GpuMoeRanks ranks({.ranks_per_node = 2}, kOdd);
    const auto inputs = ranks.inputs(random_router(kOdd, 1), 10, 1);
    require_ok(ranks.each([&](int rank) -> Status {
      if (rank != 0) return {};
      MK_RETURN_IF_ERROR(ranks.fill(rank, inputs[0], ranks.operands(rank)));
      const auto begin = std::chrono::steady_clock::now();
      const Status missed = ranks.run(rank, 10, {.deadline = 500ms});
      CHECK(std::chrono::steady_clock::now() - begin < 5s);
      CHECK(missed.code() == StatusCode::kDeadlineExceeded);
      CHECK_MESSAGE(missed.text().find("of rank 1") != std::string::npos, missed.text());
      CHECK_FALSE(ranks.operation(rank).refused());
      CHECK(ranks.run(rank, 10).code() == StatusCode::kFailedPrecondition);
      return {};
    }));
  }
  run_launches({.ranks_per_node = 2}, kTiny, 1);
}

TEST_CASE("moe: a group that fails ends the launch long before the deadline, with the group's reason") {
  if (!peers_or_skip(1)) return;
  GpuMoeRanks ranks({.ranks_per_node = 2}, kOdd);
  const auto inputs = ranks.inputs(random_router(kOdd, 1), 10, 1);
  require_ok(ranks.each([&](int rank) -> Status {
    if (rank != 0) return {};
    MK_RETURN_IF_ERROR(ranks.fill(rank, inputs[0], ranks.operands(rank)));
    MK_RETURN_IF_ERROR(ranks.enqueue(rank, ranks.operands(rank), 10, {.deadline = 20s}));
    std::this_thread::sleep_for(100ms);  // the launch is under way
    ranks.world().fail_group(rank, static_cast<std::uint32_t>(StatusCode::kUnavailable), "node b is gone");
    const auto begin = std::chrono::steady_clock::now();
    MK_RETURN_IF_ERROR(ranks.stream(rank).synchronize());
    CHECK(std::chrono::steady_clock::now() - begin < 5s);
    const Status failed = ranks.operation(rank).status();
    CHECK(failed.code() == StatusCode::kUnavailable);
    CHECK_MESSAGE(failed.text().find("node b is gone") != std::string::npos, failed.text());
    return {};
  }));
}

TEST_CASE("moe: arguments that only their own rank can know are refused there, before anything is queued") {
  if (!peers_or_skip(1)) return;
  GpuMoeRanks ranks({.ranks_per_node = 1}, kOdd);
  const auto inputs = ranks.inputs(random_router(kOdd, 1), 10, 1);
  ranks.run_checked(inputs);
  const MoeArguments good = ranks.arguments(0, ranks.operands(0), 10);
  const auto refused = [&](const MoeArguments& arguments) {
    const Status status = ranks.operation(0).enqueue(arguments, kMoeGpuOptions, ranks.stream(0).get());
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK_FALSE(ranks.operation(0).refused());
    return status.text();
  };
  const auto off = [](const void* data) {
    return const_cast<std::byte*>(static_cast<const std::byte*>(data) + 8);
  };
  for (const auto& [field, name] : {std::pair{&MoeArguments::x, "x"},
                                    {&MoeArguments::w1, "w1"},
                                    {&MoeArguments::w2, "w2"},
                                    {&MoeArguments::w1_up, "w1_up"}}) {
    MoeArguments bad = good;
    bad.*field = off(bad.*field);
    CHECK(refused(bad) == "moe: matrix " + std::string(name) + ": address modulo 16 is 8, must be 0");
  }
  MoeArguments bad = good;
  bad.y = off(bad.y);
  CHECK(refused(bad) == "moe: matrix y: address modulo 16 is 8, must be 0");
  bad = good;
  bad.tokens = 61;
  CHECK(refused(bad) == "moe: tokens = 61, but it must be 0..60");
  bad = good;
  bad.topk = nullptr;
  CHECK(refused(bad) == "moe: topk is null");
  ranks.run_checked(inputs);
}

TEST_CASE("moe: shapes and plans that the kernel does not have are refused by name") {
  if (!peers_or_skip(1)) return;
  const auto refusal = [](const MoeShape& shape, const kernels::MoeOptions& options) {
    return kernels::make_cuda_moe(shape, {1, 1}, 0, options).status().to_string();
  };
  MoeShape shape = kOdd;
  shape.hidden = 20;
  CHECK(refusal(shape, {}) ==
        "INVALID_ARGUMENT: moe: hidden = 20, but it must be a multiple of 8 on the cuda executor");
  CHECK(refusal(kOdd, {.sms = 2}) ==
        "INVALID_ARGUMENT: moe: sms = 2, but it must be at least 4 on the cuda executor");
  CHECK(refusal(kOdd, {.machine = "H300"}).find("machine = \"H300\"") != std::string::npos);
}

}  // namespace mkernel::test

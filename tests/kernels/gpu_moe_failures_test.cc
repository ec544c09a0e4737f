// Launches of the mixture of experts on the cuda executor that end with an error: what every rank refuses
// alike, also in the middle of a queue, what one rank refuses alone, and ranks that do not come.
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/gpu_moe_ranks.h"
#include "tests/support/gpu_two_launches.h"
#include "tests/support/moe_refusals.h"
#include "tests/support/require.h"

namespace mkernel::test {

using namespace std::chrono_literals;

TEST_CASE(
    "moe: bad routing on one rank is refused on all with the same words, and the next launch is right") {
  if (!peers_or_skip(1)) return;
  const MoeShape shape{.max_tokens = 4, .hidden = 8, .n = 8, .experts = 4, .topk = 2};
  for (const auto& [nodes, per_node] : {std::pair{1U, 1U}, {1U, 3U}, {2U, 1U}}) {
    GpuMoeRanks ranks({.nodes = nodes, .ranks_per_node = per_node}, shape);
    check_bad_routing(ranks, shape);
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
  GpuMoeRanks ranks({.ranks_per_node = 2}, kOddMoe);
  std::vector<std::vector<MoeInput>> inputs;  // by launch, by rank
  for (std::size_t launch = 0; launch < kQueued; ++launch) {
    const auto tokens = static_cast<std::int64_t>(10 * launch + 3);
    inputs.push_back(ranks.inputs(zipf_router(kOddMoe, launch), tokens, launch));
  }
  inputs[kBad][1].topk[4] = kOddMoe.experts;
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

TEST_CASE("moe: a rank that does not come is named within the deadline, and the GPU is usable at once") {
  if (!peers_or_skip(1)) return;
  {
    GpuMoeRanks ranks({.ranks_per_node = 2}, kOddMoe);
    const auto inputs = ranks.inputs(random_router(kOddMoe, 1), 10, 1);
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
  GpuMoeRanks others({.ranks_per_node = 2}, kTinyMoe);
  others.run_checked(others.inputs(random_router(kTinyMoe, 1), 10, 1));
}

TEST_CASE("moe: a group that fails ends the launch long before the deadline, with the group's reason") {
  if (!peers_or_skip(1)) return;
  GpuMoeRanks ranks({.ranks_per_node = 2}, kOddMoe);
  const auto inputs = ranks.inputs(random_router(kOddMoe, 1), 10, 1);
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
  GpuMoeRanks ranks({.ranks_per_node = 1}, kOddMoe);
  const auto inputs = ranks.inputs(random_router(kOddMoe, 1), 10, 1);
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

TEST_CASE("moe: of two launches at a time one says so, and nothing is launched after them") {
  if (!peers_or_skip(1)) return;
  // With one expert each launch finds rows where the other one has put them, and nothing lies beyond the
  // pool.
  const MoeShape shape{
      .max_tokens = 16384, .hidden = 1024, .n = 1024, .intermediate = 1024, .experts = 1, .topk = 1};
  constexpr std::int64_t kTokens = 4096;
  GpuMoeRanks ranks({.ranks_per_node = 1}, shape, {.sms = half_of_the_sms()});
  const MoeInput input = ranks.inputs(one_expert(0), kTokens, 1)[0];
  require_ok(ranks.fill(0, input, ranks.operands(0)));
  require_ok(ranks.run(0, kTokens));
  const auto launch = [&](CUstream_st* stream) {
    return ranks.operation(0).enqueue(ranks.arguments(0, ranks.operands(0), kTokens), kMoeGpuOptions, stream);
  };
  launch_at_the_same_time(launch, launch);
  check_not_alone(ranks.operation(0).status(), "moe");
  CHECK(ranks.enqueue(0, ranks.operands(0), kTokens).code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("moe: shapes and plans that the kernel does not have are refused by name") {
  if (!peers_or_skip(1)) return;
  const auto refusal = [](const MoeShape& shape, const kernels::MoeOptions& options) {
    return kernels::make_cuda_moe(shape, {1, 1}, 0, options).status().to_string();
  };
  MoeShape shape = kOddMoe;
  shape.hidden = 20;
  CHECK(refusal(shape, {}) ==
        "INVALID_ARGUMENT: moe: hidden = 20, but it must be a multiple of 8 on the cuda executor");
  CHECK(refusal(kOddMoe, {.sms = 2}) ==
        "INVALID_ARGUMENT: moe: sms = 2, but it must be at least 4 on the cuda executor");
  CHECK(refusal(kOddMoe, {.machine = "H300"}).find("machine = \"H300\"") != std::string::npos);
}

}  // namespace mkernel::test

// Launches of the mixture-of-experts layer that end with an error: what every rank refuses alike, what one
// rank refuses alone, and ranks that do not come or die.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tests/kernels/moe_layer.h"
#include "tests/support/moe_refusals.h"

namespace mkernel::test {
namespace {

TEST_CASE("bad routing on one rank is refused on all with the same words, and the next launch is right") {
  const MoeShape shape{.max_tokens = 4, .hidden = 8, .n = 8, .experts = 4, .topk = 2};
  for (const MoeNodes world : {MoeNodes{1, 1}, {1, 3}, {2, 1}, {2, 2}}) {
    MoeLayer layer(shape, {.nodes = world.nodes, .ranks_per_node = world.ranks, .across_nodes = true});
    check_bad_routing(layer, shape);
  }
}

TEST_CASE("more rows than the capacity are refused on all ranks, and the next launch is right") {
  // Every rank has one expert; 128 rows fit, in two halves of a block.
  const MoeShape shape{
      .max_tokens = 40, .hidden = 8, .n = 8, .intermediate = 4, .experts = 4, .topk = 1, .capacity = 100};
  for (const MoeNodes world : {MoeNodes{1, 4}, {2, 2}}) {
    MoeLayer layer(shape, {.nodes = world.nodes, .ranks_per_node = world.ranks});
    layer.run_checked(layer.inputs(one_expert(2), 32, 1));
    layer.run_refused(layer.inputs(one_expert(2), 33, 2), StatusCode::kResourceExhausted,
                      "moe: expert 2 has 132 rows, with which rank 2 needs 192 rows with padding, but its "
                      "capacity is 128");
    layer.run_checked(layer.inputs(random_router(shape, 4), 40, 3));
  }
}

TEST_CASE("arguments that only their own rank can know are refused there, before anything is sent") {
  const MoeShape shape{.max_tokens = 4, .hidden = 8, .n = 8, .experts = 4, .topk = 2};
  MoeLayer layer(shape, {.nodes = 2, .ranks_per_node = 1});
  const auto good = layer.inputs(random_router(shape, 1), 4, 1);
  MoeInput bad = good[0];
  bad.tokens = 5;
  Tensor y;
  const Status status = layer.run(0, bad, y);
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK_MESSAGE(status.text().find("tokens = 5, but it must be 0..4") != std::string::npos, status.text());
  CHECK_FALSE(layer.operation(0).refused());
  CHECK(layer.operation(0).run({.tokens = 4}, {}).text() == "moe: x is null");
  CHECK(layer.operation(0).run({.w1 = y.data(), .w1_up = y.data()}, {}).text() ==
        "moe: w1_up is given, but with intermediate = 0 there is no second half of w1");
  CHECK(layer.fabric().delivered(0, 1, 1) == 0);
  layer.run_checked(good);
}

TEST_CASE("a peer that does not come is named at the deadline, and the operation runs no more") {
  const MoeShape shape{.max_tokens = 4, .hidden = 8, .n = 8, .experts = 4, .topk = 2};
  for (const MoeNodes world : {MoeNodes{1, 3}, {3, 1}, {2, 2}}) {
    MoeLayer layer(shape, {.nodes = world.nodes, .ranks_per_node = world.ranks});
    const auto good = layer.inputs(random_router(shape, 1), 4, 1);
    const std::uint32_t missing = layer.world() - 1;
    const auto statuses = run_ranks(layer.world(), [&](std::uint32_t rank) -> Status {
      if (rank == missing) return {};
      Tensor y;
      return layer.run(rank, good[rank], y, std::chrono::seconds(1));
    });
    for (std::uint32_t rank = 0; rank < missing; ++rank) {
      CHECK(statuses[rank].code() == StatusCode::kDeadlineExceeded);
      const std::string whom = "of rank " + std::to_string(missing);
      CHECK_MESSAGE(statuses[rank].text().find(whom) != std::string::npos, statuses[rank].text());
      CHECK_FALSE(layer.operation(rank).refused());
      Tensor y;
      CHECK(layer.run(rank, good[rank], y).code() == StatusCode::kFailedPrecondition);
    }
  }
}

TEST_CASE("a rank that dies makes the others fail by name") {
  const MoeShape shape{.max_tokens = 4, .hidden = 8, .n = 8, .experts = 4, .topk = 2};
  MoeLayer layer(shape, {.nodes = 2, .ranks_per_node = 2});
  std::vector<MoeInput> inputs;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    inputs.push_back(random_input(shape, rank, 4, random_router(shape, 1), 1));
  }
  std::thread daemon([&] { layer.fabric().fail_group(StatusCode::kUnavailable, 3, "n1", "rank 3 died"); });
  const auto statuses = run_ranks(4, [&](std::uint32_t rank) -> Status {
    if (rank == 3) return {};
    Tensor y;
    return layer.run(rank, inputs[rank], y);
  });
  daemon.join();
  for (const std::uint32_t rank : {0U, 1U, 2U}) {
    CHECK(statuses[rank].code() == StatusCode::kUnavailable);
    CHECK_MESSAGE(statuses[rank].text().find("rank 3") != std::string::npos, statuses[rank].to_string());
  }
}

}  // namespace
}  // namespace mkernel::test

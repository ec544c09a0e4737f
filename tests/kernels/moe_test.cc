// The mixture-of-experts layer on a fabric in one process: every element against fp64, the bytes on the wire,
// the same bits under every timing.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/ops/make.h"
#include "mkernel/ops.h"
#include "tests/support/fake_fabric.h"
#include "tests/support/moe_reference.h"
#include "tests/support/random_tensor.h"

namespace mkernel::test {
namespace {

using Tensor = std::vector<std::uint16_t>;
/// Distinct experts of one token of one rank.
using Router = std::function<std::vector<std::int32_t>(std::uint32_t rank, std::int64_t token)>;

MoeWeights random_weights(const MoeShape& shape, std::uint64_t seed) {
  const std::int64_t columns = shape.intermediate > 0 ? 2 * shape.intermediate : shape.n;
  return {random_tensor(shape.experts * shape.hidden * columns, shape.dtype, seed),
          random_tensor(shape.experts * shape.intermediate * shape.n, shape.dtype, seed + 1)};
}

MoeInput random_input(const MoeShape& shape, std::uint32_t rank, std::int64_t tokens, const Router& router,
                      std::uint64_t seed) {
  MoeInput input{tokens, random_tensor(tokens * shape.hidden, shape.dtype, seed + rank), {}, {}};
  std::mt19937_64 random(seed * 31 + rank);
  std::uniform_real_distribution<float> weight(0.1F, 1.0F);
  for (std::int64_t token = 0; token < tokens; ++token) {
    const auto chosen = router(rank, token);
    REQUIRE(static_cast<std::int64_t>(chosen.size()) == shape.topk);
    input.topk.insert(input.topk.end(), chosen.begin(), chosen.end());
    for (std::int64_t j = 0; j < shape.topk; ++j) input.weights.push_back(weight(random));
  }
  return input;
}

Router random_router(const MoeShape& shape, std::uint64_t seed) {
  return [shape, seed](std::uint32_t rank, std::int64_t token) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(shape.experts));
    std::iota(all.begin(), all.end(), 0);
    std::mt19937_64 random(seed * 1000003 + rank * 1009 + static_cast<std::uint64_t>(token));
    std::shuffle(all.begin(), all.end(), random);
    all.resize(static_cast<std::size_t>(shape.topk));
    return all;
  };
}

/// The operation on every rank of a fabric.
class Layer {
 public:
  Layer(const MoeShape& shape, const FabricOptions& options)
      : shape_(shape), fabric_(options), weights_(random_weights(shape, 17)) {
    for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank) {
      auto made = kernels::make_moe(shape, fabric_.group(rank));
      REQUIRE_MESSAGE(made.ok(), made.status().to_string());
      operations_.push_back(std::move(made).value());
    }
    workspace_ = fabric_.symmetric(operations_[0]->requirements().workspace_bytes);
    for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank) {
      REQUIRE(operations_[rank]->bind(fabric_.group(rank), workspace_[rank], {}, 1).ok());
    }
  }

  FakeFabric& fabric() { return fabric_; }
  MoeOperation& operation(std::uint32_t rank) { return *operations_[rank]; }

  Status run(std::uint32_t rank, const MoeInput& input, Tensor& y,
             std::chrono::milliseconds deadline = std::chrono::minutes(2)) {
    const Range own = block_range(shape_.experts, fabric_.world(), rank);
    const std::int64_t columns = shape_.intermediate > 0 ? 2 * shape_.intermediate : shape_.n;
    MoeArguments arguments{input.tokens, input.x.data(), input.topk.data(), input.weights.data()};
    arguments.w1 = weights_.w1.data() + own.begin * shape_.hidden * columns;
    if (shape_.intermediate > 0)
      arguments.w2 = weights_.w2.data() + own.begin * shape_.intermediate * shape_.n;
    y.assign(static_cast<std::size_t>(input.tokens * shape_.n), kPoison);
    arguments.y = y.data();
    ExecutorOptions options;
    options.deadline = deadline;
    options.compute_threads = 1 + static_cast<int>(rank % 2);
    return operations_[rank]->run(arguments, options);
  }

  /// One launch on all ranks, checked element by element; the outputs by rank.
  std::vector<Tensor> run_checked(const std::vector<MoeInput>& inputs) {
    std::vector<Tensor> y(fabric_.world());
    const auto statuses =
        run_ranks(fabric_.world(), [&](std::uint32_t rank) { return run(rank, inputs[rank], y[rank]); });
    for (const Status& status : statuses) CHECK_MESSAGE(status.ok(), status.to_string());
    for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank) {
      std::size_t at = 0, wrong = 0;
      for (std::int64_t token = 0; token < inputs[rank].tokens; ++token) {
        for (const Expected& expected : moe_row(shape_, weights_, inputs[rank], token)) {
          const double seen = value_of(shape_.dtype, y[rank][at++]);
          if (!(std::abs(seen - expected.value) <= expected.tolerance)) ++wrong;
        }
      }
      CHECK_MESSAGE(wrong == 0, "rank ", rank, ": ", wrong, " of ", at, " elements wrong");
    }
    CHECK(fabric_.error() == "");
    return y;
  }

 private:
  MoeShape shape_;
  FakeFabric fabric_;
  MoeWeights weights_;
  std::vector<kernels::SymmetricView> workspace_;
  std::vector<std::unique_ptr<MoeOperation>> operations_;
};

/// `launches` launches with other inputs and other numbers of tokens each; the outputs of the last.
std::vector<Tensor> run_launches(const MoeShape& shape, const FabricOptions& options, int launches) {
  Layer layer(shape, options);
  std::vector<Tensor> y;
  for (int launch = 0; launch < launches; ++launch) {
    std::vector<MoeInput> inputs;
    const auto seed = 100 + static_cast<std::uint64_t>(launch);
    for (std::uint32_t rank = 0; rank < layer.fabric().world(); ++rank) {
      const std::int64_t tokens = (7 * (rank + 1) + 13 * launch) % (shape.max_tokens + 1);
      inputs.push_back(
          random_input(shape, rank, (rank + launch) % 4 == 3 ? 0 : tokens, random_router(shape, seed), seed));
    }
    y = layer.run_checked(inputs);
  }
  return y;
}

struct World {
  std::uint32_t nodes, ranks;
};

TEST_CASE("moe is right on every world, with one product and with two, launch after launch") {
  for (const World world : {World{1, 1}, {1, 4}, {2, 1}, {2, 2}, {3, 2}, {2, 4}}) {
    for (const std::int64_t intermediate : {0, 12}) {
      CAPTURE(world.nodes);
      CAPTURE(world.ranks);
      CAPTURE(intermediate);
      const MoeShape shape{.max_tokens = 37,
                           .hidden = 20,
                           .n = 18,
                           .intermediate = intermediate,
                           .experts = 11,
                           .topk = 3,
                           .dtype = intermediate > 0 ? DataType::kF16 : DataType::kBf16};
      run_launches(shape, {.nodes = world.nodes, .ranks_per_node = world.ranks, .rings = 2, .seed = 3}, 5);
    }
  }
}

TEST_CASE("moe works with fewer experts than ranks and with all experts chosen") {
  run_launches({.max_tokens = 20, .hidden = 8, .n = 8, .experts = 3, .topk = 3},
               {.nodes = 2, .ranks_per_node = 4, .seed = 5}, 2);
}

TEST_CASE("moe splits rows over several puts and blocks") {
  // 600 rows of 4 KiB are three puts; an expert with all rows has five blocks.
  const MoeShape shape{.max_tokens = 600, .hidden = 2048, .n = 24, .experts = 2, .topk = 1};
  Layer layer(shape, {.nodes = 2, .ranks_per_node = 1, .seed = 8});
  std::vector<MoeInput> inputs;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const Router other = [](std::uint32_t source, std::int64_t) {
      return std::vector<std::int32_t>{source == 0 ? 1 : 0};
    };
    inputs.push_back(random_input(shape, rank, rank == 0 ? 600 : 5, other, 4));
  }
  layer.run_checked(inputs);
  CHECK(layer.fabric().delivered(0, 1, 1) == 1 + 3);
}

TEST_CASE("moe takes any skew: all tokens to one expert") {
  const MoeShape shape{.max_tokens = 150, .hidden = 16, .n = 16, .intermediate = 8, .experts = 8, .topk = 1};
  for (const std::int32_t expert : {0, 7}) {
    Layer layer(shape, {.nodes = 2, .ranks_per_node = 2, .seed = 2});
    std::vector<MoeInput> inputs;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      const Router one = [expert](std::uint32_t, std::int64_t) { return std::vector<std::int32_t>{expert}; };
      inputs.push_back(random_input(shape, rank, 150 - 40 * rank, one, 6));
    }
    layer.run_checked(inputs);
  }
}

TEST_CASE("moe sends a token to a node once, and nothing to a node without its experts") {
  const MoeShape shape{.max_tokens = 30, .hidden = 16, .n = 8, .experts = 8, .topk = 4};
  Layer layer(shape, {.nodes = 2, .ranks_per_node = 2});
  // Experts 0..3 live on node 0. Ranks 0 and 2 stay at home, rank 1 goes to the other node with all four
  // entries, rank 3 with two of four.
  const Router router = [](std::uint32_t rank, std::int64_t) -> std::vector<std::int32_t> {
    if (rank == 0) return {3, 0, 2, 1};
    if (rank == 1) return {4, 7, 5, 6};
    if (rank == 2) return {5, 4, 7, 6};
    return {6, 0, 3, 5};
  };
  std::vector<MoeInput> inputs;
  for (std::uint32_t rank = 0; rank < 4; ++rank) inputs.push_back(random_input(shape, rank, 30, router, 1));
  layer.run_checked(inputs);
  const std::uint64_t out = 64 + 30 * 4 * 8 + 30 * 16 * 2;  // header, experts and weights, rows
  const std::uint64_t back = 30 * 8 * 2;                    // one sum per token
  const std::uint64_t expected[] = {0, out + back, 0, out + back};
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    // Ranks 1 and 3 are rail peers: each sends its own rows and the other's sums.
    CHECK(layer.operation(rank).wire_bytes() == expected[rank]);
    CHECK(layer.fabric().wire_bytes(rank) == expected[rank]);
  }
}

TEST_CASE("moe gives the same bits whatever the fabric does") {
  const MoeShape shape{.max_tokens = 40, .hidden = 16, .n = 16, .intermediate = 8, .experts = 10, .topk = 3};
  const auto first = run_launches(shape, {.nodes = 3, .ranks_per_node = 2, .seed = 0}, 3);
  for (const std::uint64_t seed : {1, 2, 3}) {
    CHECK(run_launches(shape, {.nodes = 3, .ranks_per_node = 2, .seed = seed}, 3) == first);
  }
}

TEST_CASE("bad routing is refused by name before anything is sent, and the launch can be repeated") {
  const MoeShape shape{.max_tokens = 4, .hidden = 8, .n = 8, .experts = 4, .topk = 2};
  Layer layer(shape, {.nodes = 2, .ranks_per_node = 1});
  const Router router = random_router(shape, 1);
  std::vector<MoeInput> inputs{random_input(shape, 0, 4, router, 1), random_input(shape, 1, 4, router, 1)};
  MoeInput bad = inputs[0];
  Tensor y;
  bad.topk[5] = 4;
  Status status = layer.run(0, bad, y);
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK_MESSAGE(status.text().find("topk[2, 1] = 4") != std::string::npos, status.text());
  bad.topk[5] = -1;
  CHECK(layer.run(0, bad, y).code() == StatusCode::kInvalidArgument);
  bad.topk[5] = bad.topk[4];
  status = layer.run(0, bad, y);
  CHECK_MESSAGE(status.text().find("has already") != std::string::npos, status.text());
  bad.tokens = 5;
  CHECK_MESSAGE(layer.run(0, bad, y).text().find("tokens = 5") != std::string::npos, status.text());
  CHECK(layer.fabric().delivered(0, 1, 1) == 0);
  layer.run_checked(inputs);
}

TEST_CASE("a peer that does not come is named at the deadline, and the operation runs no more") {
  const MoeShape shape{.max_tokens = 4, .hidden = 8, .n = 8, .experts = 4, .topk = 2};
  Layer layer(shape, {.nodes = 2, .ranks_per_node = 1});
  const MoeInput input = random_input(shape, 0, 4, random_router(shape, 1), 1);
  Tensor y;
  const Status status = layer.run(0, input, y, std::chrono::milliseconds(50));
  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK_MESSAGE(status.text().find("of rank 1") != std::string::npos, status.text());
  CHECK(layer.run(0, input, y).code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("a rank that dies makes the others fail by name") {
  const MoeShape shape{.max_tokens = 4, .hidden = 8, .n = 8, .experts = 4, .topk = 2};
  Layer layer(shape, {.nodes = 2, .ranks_per_node = 2});
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

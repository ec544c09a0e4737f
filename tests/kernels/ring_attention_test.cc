// Ring attention on a fabric in one process: every element against fp64, the same bits under every timing.
#include <doctest/doctest.h>

#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/ops/make.h"
#include "mkernel/ops.h"
#include "tests/support/attention_cases.h"
#include "tests/support/fake_fabric.h"
#include "tests/support/random_tensor.h"

namespace mkernel::test {
namespace {

using Tensor = std::vector<std::uint16_t>;

/// The operation on every rank of a fabric.
class Ring {
 public:
  Ring(const AttentionShape& shape, const FabricOptions& options) : shape_(shape), fabric_(options) {
    for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank) {
      auto made = kernels::make_attention(OpKind::kRingAttention, shape, fabric_.group(rank));
      REQUIRE_MESSAGE(made.ok(), made.status().to_string());
      operations_.push_back(std::move(made).value());
    }
    const Requirements needs = operations_[0]->requirements();
    workspace_ = fabric_.symmetric(needs.workspace_bytes);
    lent_ = fabric_.symmetric(kernels::lent_workspace_bytes(needs.lent_bytes));
    for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank) {
      REQUIRE(operations_[rank]->bind(fabric_.group(rank), workspace_[rank], lent_[rank], 0).ok());
    }
  }

  FakeFabric& fabric() { return fabric_; }
  AttentionOperation& operation(std::uint32_t rank) { return *operations_[rank]; }

  /// One launch; the statuses by rank. Outputs (by rank) are poisoned before.
  std::vector<Status> launch(const AttentionTensors& whole, std::vector<Tensor>& out,
                             std::uint32_t missing = ~0U) {
    const std::uint32_t world = fabric_.world();
    std::vector<Tensor> q(world), k(world), v(world);
    out.assign(world, {});
    lse_.assign(world, {});
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      q[rank] = part(whole.q, shape_.heads, rank);
      k[rank] = part(whole.k, shape_.kv_heads, rank);
      v[rank] = part(whole.v, shape_.kv_heads, rank);
      out[rank].assign(q[rank].size(), kPoison);
      lse_[rank].assign(q[rank].size() / static_cast<std::size_t>(shape_.head_dim),
                        std::numeric_limits<float>::quiet_NaN());
    }
    const std::vector<Tensor> inputs[] = {q, k, v};
    auto statuses = run_ranks(world, [&](std::uint32_t rank) -> Status {
      if (rank == missing) return {};
      ExecutorOptions options;
      options.compute_threads = 1 + static_cast<int>(rank % 2);
      return operations_[rank]->run(
          {q[rank].data(), k[rank].data(), v[rank].data(), out[rank].data(), lse_[rank].data()}, options);
    });
    CHECK(inputs[0] == q);  // inputs are never overwritten
    CHECK(inputs[1] == k);
    CHECK(inputs[2] == v);
    return statuses;
  }

  /// Every `step`-th query of a rank.
  void check(const AttentionTensors& whole, const std::vector<Tensor>& out, std::int64_t step = 1) const {
    for (std::uint32_t rank = 0; rank < out.size(); ++rank) {
      const std::size_t wrong = wrong_attention_of_rank(shape_, whole, std::ssize(out), rank, out[rank],
                                                        lse_[rank], Weights::kFp32, step);
      CHECK_MESSAGE(wrong == 0, "rank ", rank, ": ", wrong, " of ", out[rank].size(), " elements wrong");
    }
  }

 private:
  Tensor part(const Tensor& whole, std::int64_t heads, std::uint32_t rank) const {
    return rows_of_rank(shape_, whole, heads, fabric_.world(), rank);
  }

  AttentionShape shape_;
  FakeFabric fabric_;
  std::vector<kernels::SymmetricView> workspace_, lent_;
  std::vector<std::vector<float>> lse_;  ///< of the last launch, by rank
  std::vector<std::unique_ptr<AttentionOperation>> operations_;
};

/// `launches` launches with new inputs each, all checked; the output of the last.
std::vector<Tensor> run_checked(const AttentionShape& shape, const FabricOptions& options, int launches = 1) {
  Ring ring(shape, options);
  std::vector<Tensor> out;
  for (int launch = 0; launch < launches; ++launch) {
    const AttentionTensors whole = random_attention(shape, 100 + static_cast<std::uint64_t>(launch), 2);
    for (const Status& status : ring.launch(whole, out)) CHECK_MESSAGE(status.ok(), status.to_string());
    ring.check(whole, out);
  }
  CHECK(ring.fabric().error() == "");
  return out;
}

struct World {
  std::uint32_t nodes, ranks;
};

TEST_CASE("ring attention: the cases of both executors") {
  for_every_ring_case([](const AttentionShape& shape, float scale, std::uint32_t nodes, std::uint32_t ranks) {
    CAPTURE(nodes);
    CAPTURE(ranks);
    Ring ring(shape, {.nodes = nodes, .ranks_per_node = ranks, .seed = 3});
    CAPTURE(ring.operation(0).signature());
    const AttentionTensors whole = random_attention(shape, 1, scale);
    std::vector<Tensor> out;
    for (const Status& status : ring.launch(whole, out)) CHECK_MESSAGE(status.ok(), status.to_string());
    ring.check(whole, out, sampling_step(shape.batch * shape.heads * shape.sequence / nodes / ranks, 8));
    CHECK(ring.fabric().error() == "");
  });
}

TEST_CASE("ring attention is right on every world, causal and full, for any sequence length") {
  for (const World world : {World{1, 1}, {1, 3}, {1, 8}, {2, 1}, {2, 2}, {3, 2}, {4, 1}, {2, 4}}) {
    for (const bool causal : {false, true}) {
      for (const std::int64_t sequence : {1, 7, 37, 300}) {
        CAPTURE(world.nodes);
        CAPTURE(world.ranks);
        CAPTURE(causal);
        CAPTURE(sequence);
        const AttentionShape shape{
            .batch = 2, .sequence = sequence, .heads = 4, .kv_heads = 2, .head_dim = 16, .causal = causal};
        run_checked(shape, {.nodes = world.nodes, .ranks_per_node = world.ranks, .seed = 3});
      }
    }
  }
}

TEST_CASE("ring attention attends to heads of several chunks and tiles") {
  // Of 1 MiB: 128 rows, two chunks to a head.
  const AttentionShape shape{.batch = 1,
                             .sequence = 290,
                             .heads = 1,
                             .kv_heads = 1,
                             .head_dim = 4096,
                             .causal = true,
                             .dtype = DataType::kF16};
  run_checked(shape, {.nodes = 2, .ranks_per_node = 1, .seed = 11});
}

TEST_CASE("ring attention takes a scale and a single kv head") {
  const AttentionShape shape{.batch = 3,
                             .sequence = 37,
                             .heads = 6,
                             .kv_heads = 1,
                             .head_dim = 20,
                             .causal = true,
                             .scale = 0.5,
                             .dtype = DataType::kF16};
  run_checked(shape, {.nodes = 3, .ranks_per_node = 2, .seed = 5});
}

TEST_CASE("ring attention repeats with new inputs") {
  const AttentionShape shape{
      .batch = 1, .sequence = 45, .heads = 2, .kv_heads = 1, .head_dim = 8, .causal = true};
  for (const World world : {World{1, 2}, {3, 1}, {2, 2}}) {
    run_checked(shape, {.nodes = world.nodes, .ranks_per_node = world.ranks, .rings = 2, .seed = 9}, 5);
  }
}

TEST_CASE("ring attention gives the same bits whatever the fabric does") {
  const AttentionShape shape{
      .batch = 1, .sequence = 130, .heads = 4, .kv_heads = 2, .head_dim = 16, .causal = true};
  const auto first = run_checked(shape, {.nodes = 3, .ranks_per_node = 2, .seed = 0}, 2);
  for (const std::uint64_t seed : {1, 2, 3}) {
    CHECK(run_checked(shape, {.nodes = 3, .ranks_per_node = 2, .seed = seed}, 2) == first);
  }
}

TEST_CASE("ring attention sends keys and values to each other node once, and nothing within a node") {
  const AttentionShape shape{.batch = 1, .sequence = 60, .heads = 4, .kv_heads = 2, .head_dim = 16};
  Ring ring(shape, {.nodes = 3, .ranks_per_node = 2});
  std::vector<Tensor> out;
  for (const Status& status : ring.launch(random_attention(shape, 1), out)) CHECK(status.ok());
  const std::uint64_t block = 10 * 2 * 2 * 16 * 2;  // positions, k and v, kv heads, head_dim, bytes
  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    CHECK(ring.operation(rank).wire_bytes() == 2 * block);
    CHECK(ring.fabric().wire_bytes(rank) == 2 * block);
  }
}

TEST_CASE("a rank that never comes makes the others fail by name") {
  const AttentionShape shape{.batch = 1, .sequence = 60, .heads = 2, .kv_heads = 1, .head_dim = 16};
  Ring ring(shape, {.nodes = 2, .ranks_per_node = 2});
  std::thread daemon([&] { ring.fabric().fail_group(StatusCode::kUnavailable, 3, "n1", "rank 3 died"); });
  std::vector<Tensor> out;
  const auto statuses = ring.launch(random_attention(shape, 1), out, 3);
  daemon.join();
  for (const std::uint32_t rank : {0U, 1U, 2U}) {
    CHECK(statuses[rank].code() == StatusCode::kUnavailable);
    CHECK_MESSAGE(statuses[rank].text().find("rank 3") != std::string::npos, statuses[rank].to_string());
  }
}

TEST_CASE("a peer that does not come is named at the deadline, and the operation runs no more") {
  const AttentionShape shape{.batch = 1, .sequence = 6, .heads = 1, .kv_heads = 1, .head_dim = 8};
  Ring ring(shape, {.nodes = 2, .ranks_per_node = 1});
  const Tensor data = random_tensor(24, shape.dtype, 1);
  Tensor out(24);
  const ExecutorOptions options{.deadline = std::chrono::milliseconds(50), .compute_threads = 1};
  const auto run = [&] {
    return ring.operation(0).run({data.data(), data.data(), data.data(), out.data()}, options);
  };
  const Status status = run();
  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK_MESSAGE(status.text().find("of rank 1") != std::string::npos, status.text());
  CHECK(run().code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("a missing tensor is refused by name") {
  const AttentionShape shape{.batch = 1, .sequence = 4, .heads = 1, .kv_heads = 1, .head_dim = 8};
  Ring ring(shape, {});
  const Tensor data(64);
  const Status status = ring.operation(0).run({data.data(), nullptr, data.data(), nullptr}, {});
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK(status.text().find("k is null") != std::string::npos);
}

}  // namespace
}  // namespace mkernel::test

// The backward pass of ring attention on a fabric in one process: every element against fp64, the same bits
// under every timing, what is refused.
#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/ops/make.h"
#include "mkernel/ops.h"
#include "tests/support/attention_backward_reference.h"
#include "tests/support/fake_fabric.h"
#include "tests/support/require.h"

namespace mkernel::test {
namespace {

using Gradients = std::vector<AttentionGradients>;

/// The operation on every rank of a fabric.
class RingBackward {
 public:
  RingBackward(const AttentionShape& shape, const FabricOptions& options) : shape_(shape), fabric_(options) {
    for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank) {
      operations_.push_back(require(
          kernels::make_attention_backward(OpKind::kRingAttentionBackward, shape, fabric_.group(rank))));
    }
    const Requirements needs = operations_[0]->requirements();
    workspace_ = fabric_.symmetric(needs.workspace_bytes);
    lent_ = fabric_.symmetric(kernels::lent_workspace_bytes(needs.lent_bytes));
    for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank)
      require_ok(operations_[rank]->bind(fabric_.group(rank), workspace_[rank], lent_[rank], 0));
  }

  FakeFabric& fabric() { return fabric_; }
  AttentionBackwardOperation& operation(std::uint32_t rank) { return *operations_[rank]; }

  /// One launch; the statuses by rank. Gradients (by rank) are poisoned before.
  std::vector<Status> launch(const AttentionBackwardTensors& whole, Gradients& gradients,
                             std::uint32_t missing = ~0U) {
    const std::uint32_t world = fabric_.world();
    std::vector<AttentionBackwardTensors> tensors;
    gradients.clear();
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      tensors.push_back(backward_of_rank(shape_, whole, world, rank));
      gradients.push_back(poisoned_gradients_of_rank(shape_, world, rank));
    }
    return run_ranks(world, [&](std::uint32_t rank) -> Status {
      if (rank == missing) return {};
      const ExecutorOptions options{.compute_threads = 1 + static_cast<int>(rank % 2)};
      return operations_[rank]->run(backward_arguments(tensors[rank], gradients[rank]), options);
    });
  }

 private:
  AttentionShape shape_;
  FakeFabric fabric_;
  std::vector<kernels::SymmetricView> workspace_, lent_;
  std::vector<std::unique_ptr<AttentionBackwardOperation>> operations_;
};

/// `launches` launches with new operands each, all checked; the gradients of the last.
Gradients run_ring_backward(const AttentionShape& shape, const FabricOptions& options, int launches = 1) {
  RingBackward ring(shape, options);
  Gradients gradients;
  for (int launch = 0; launch < launches; ++launch) {
    const AttentionBackwardTensors whole =
        random_attention_backward(shape, 100 + static_cast<std::uint64_t>(launch), 2);
    for (const Status& status : ring.launch(whole, gradients)) CHECK_MESSAGE(status.ok(), status.to_string());
    const int roundings = options.nodes > 1 ? 2 : 1;  // of what a rank gives, and of a node's sum
    CHECK(wrong_gradients_of_ranks(shape, whole, gradients, Weights::kFp32, roundings) == 0);
  }
  CHECK(ring.fabric().error() == "");
  return gradients;
}

constexpr AttentionShape kRingBackwardShape{
    .batch = 2, .sequence = 37, .heads = 4, .kv_heads = 2, .head_dim = 16};

}  // namespace

TEST_CASE("ring attention backward: right on every world, both masks and types, for any sequence length") {
  for (const FabricOptions& world : {FabricOptions{.nodes = 1, .ranks_per_node = 1},
                                     {.nodes = 1, .ranks_per_node = 3},
                                     {.nodes = 1, .ranks_per_node = 8},
                                     {.nodes = 2, .ranks_per_node = 1},
                                     {.nodes = 2, .ranks_per_node = 2},
                                     {.nodes = 3, .ranks_per_node = 2},
                                     {.nodes = 4, .ranks_per_node = 1}}) {
    for (const bool causal : {false, true}) {
      for (const std::int64_t sequence : {1, 5, 37}) {
        CAPTURE(world.nodes);
        CAPTURE(world.ranks_per_node);
        CAPTURE(causal);
        CAPTURE(sequence);
        AttentionShape shape = kRingBackwardShape;
        shape.sequence = sequence;
        shape.causal = causal;
        shape.dtype = causal ? DataType::kF16 : DataType::kBf16;
        run_ring_backward(shape, world);
      }
    }
  }
}

TEST_CASE("ring attention backward: heads of several tiles and chunks") {
  // Chunks of 128 KiB: a head of a rank's 135 positions has two.
  const AttentionShape shape{
      .batch = 1, .sequence = 270, .heads = 2, .kv_heads = 1, .head_dim = 512, .causal = true};
  run_ring_backward(shape, {.nodes = 2, .ranks_per_node = 1, .seed = 11});
}

TEST_CASE("ring attention backward: a scale and a single kv head, ranks across nodes") {
  AttentionShape shape = kRingBackwardShape;
  shape.kv_heads = 1;
  shape.head_dim = 20;
  shape.causal = true;
  shape.scale = 0.5;
  run_ring_backward(shape, {.nodes = 3, .ranks_per_node = 2, .seed = 5, .across_nodes = true});
}

TEST_CASE(
    "ring attention backward: repeats with new operands, and with the same bits whatever the fabric does") {
  AttentionShape shape = kRingBackwardShape;
  shape.causal = true;
  const Gradients first =
      run_ring_backward(shape, {.nodes = 2, .ranks_per_node = 2, .rings = 2, .seed = 0}, 4);
  for (const std::uint64_t seed : {1, 2})
    CHECK(run_ring_backward(shape, {.nodes = 2, .ranks_per_node = 2, .rings = 2, .seed = seed}, 4) == first);
}

TEST_CASE("ring attention backward: a node puts keys and values, and one sum of gradients to their owners") {
  AttentionShape shape = kRingBackwardShape;
  shape.sequence = 60;
  RingBackward ring(shape, {.nodes = 3, .ranks_per_node = 2});
  Gradients gradients;
  for (const Status& status : ring.launch(random_attention_backward(shape, 1), gradients)) CHECK(status.ok());
  const std::uint64_t heads = 2 * 2;                   // batch, kv heads
  const std::uint64_t elements = 2 * 10 * heads * 16;  // two tensors, positions, head_dim
  const std::uint64_t sums = heads * 2 * 64 * 64;      // of every head a unit of each tensor: 64 rows, a box
  for (std::uint32_t rank = 0; rank < 6; ++rank)
    CHECK(ring.operation(rank).wire_bytes() == 2 * 2 * (elements + sums));  // two nodes; 16 bits
}

TEST_CASE("ring attention backward: a rank that never comes makes the others fail by name") {
  RingBackward ring(kRingBackwardShape, {.nodes = 2, .ranks_per_node = 2});
  std::thread daemon([&] { ring.fabric().fail_group(StatusCode::kUnavailable, 3, "n1", "rank 3 died"); });
  Gradients gradients;
  const auto statuses = ring.launch(random_attention_backward(kRingBackwardShape, 1), gradients, 3);
  daemon.join();
  for (const std::uint32_t rank : {0U, 1U, 2U}) {
    CHECK(statuses[rank].code() == StatusCode::kUnavailable);
    CHECK_MESSAGE(statuses[rank].text().find("rank 3") != std::string::npos, statuses[rank].to_string());
  }
}

TEST_CASE(
    "ring attention backward: a peer that does not come is named at the deadline, and then nothing runs") {
  for (const FabricOptions& world :
       {FabricOptions{.nodes = 2, .ranks_per_node = 1}, {.nodes = 1, .ranks_per_node = 2}}) {
    RingBackward ring(kRingBackwardShape, world);
    const auto tensors =
        backward_of_rank(kRingBackwardShape, random_attention_backward(kRingBackwardShape, 1), 2, 0);
    AttentionGradients gradients = poisoned_gradients_of_rank(kRingBackwardShape, 2, 0);
    const auto run = [&] {
      return ring.operation(0).run(backward_arguments(tensors, gradients),
                                   {.deadline = std::chrono::milliseconds(50), .compute_threads = 1});
    };
    const Status status = run();
    CHECK(status.code() == StatusCode::kDeadlineExceeded);
    CHECK_MESSAGE(status.text().find("of rank 1") != std::string::npos, status.text());
    CHECK(run().code() == StatusCode::kFailedPrecondition);
  }
}

TEST_CASE("ring attention backward: shapes and operands that no launch can take are refused by name") {
  FakeFabric fabric({.nodes = 1, .ranks_per_node = 2});
  const auto refusal = [&](const AttentionShape& shape, const kernels::MakeOptions& options = {},
                           OpKind kind = OpKind::kRingAttentionBackward) {
    return kernels::make_attention_backward(kind, shape, fabric.group(0), options).status().to_string();
  };
  const std::string begin = "INVALID_ARGUMENT: ring_attention_backward: ";
  AttentionShape shape = kRingBackwardShape;
  shape.heads = 3;
  CHECK(refusal(shape) == begin + "heads = 3, but it must be a multiple of kv_heads = 2");
  shape = kRingBackwardShape;
  shape.keys = 9;
  CHECK(refusal(shape) == begin + "keys = 9, but it must be 0 or the sequence, 37");
  shape = kRingBackwardShape;
  shape.window_left = 4;
  CHECK(refusal(shape) == begin + "window_left = 4, but it must be -1");
  CHECK(refusal(kRingBackwardShape, {.plan = {.sms = 4}}) ==
        begin + "the cpu executor has no GemmPlanOptions to override");
  CHECK(
      refusal(kRingBackwardShape, {}, OpKind::kRingAttention) ==
      "INVALID_ARGUMENT: make_attention_backward: kind is ring_attention, must be ring_attention_backward or "
      "attention_backward");

  RingBackward ring(kRingBackwardShape, {});
  const AttentionBackwardTensors tensors = random_attention_backward(kRingBackwardShape, 1);
  AttentionGradients gradients = poisoned_gradients(kRingBackwardShape);
  AttentionBackwardArguments arguments = backward_arguments(tensors, gradients);
  arguments.lse = nullptr;
  CHECK(ring.operation(0).run(arguments, {}).text() ==
        "ring_attention_backward: lse is null, but the backward pass needs every operand");
  arguments = backward_arguments(tensors, gradients);
  arguments.d_k = nullptr;
  CHECK(ring.operation(0).run(arguments, {}).text() ==
        "ring_attention_backward: d_k is null, but the backward pass needs every operand");
}

}  // namespace mkernel::test

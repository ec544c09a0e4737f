#include "tests/kernels/moe_layer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "kernels/plan/topology.h"
#include "tests/support/random_tensor.h"

namespace mkernel::test {
MoeLayer::MoeLayer(const MoeShape& shape, const FabricOptions& options, const kernels::MoeOptions& plan)
    : shape_(shape), fabric_(options), weights_(random_weights(shape, 17)) {
  const auto topology = kernels::Topology::of(fabric_.group(0));
  REQUIRE(topology.ok());
  for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank) {
    auto made = kernels::make_cpu_moe(shape, topology.value(), plan);
    REQUIRE_MESSAGE(made.ok(), made.status().to_string());
    operations_.push_back(std::move(made).value());
  }
  workspace_ = fabric_.symmetric(operations_[0]->requirements().workspace_bytes);
  for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank) {
    REQUIRE(operations_[rank]->bind(fabric_.group(rank), workspace_[rank], {}, 1).ok());
  }
  set_w1_up(false);
}

void MoeLayer::set_w1_up(bool given) {
  operands_ = weight_operands(shape_, weights_, given);
}

std::vector<MoeInput> MoeLayer::inputs(const Router& router, const TokensOfRank& tokens,
                                       std::uint64_t seed) const {
  return random_inputs(shape_, world(), router, tokens, seed);
}

std::vector<MoeInput> MoeLayer::inputs(const Router& router, std::int64_t each, std::uint64_t seed) const {
  return inputs(
      router, [each](std::uint32_t) { return each; }, seed);
}

Status MoeLayer::run(std::uint32_t rank, const MoeInput& input, Tensor& y,
                     std::chrono::milliseconds deadline) {
  const auto mine = [&](const Tensor& all) {
    return all.empty() ? nullptr : own_experts(shape_, world(), rank, all).data();
  };
  const auto given = [](const auto& all) { return all.empty() ? nullptr : all.data(); };
  MoeArguments arguments{input.tokens, input.x.data(), input.topk.data(), input.weights.data()};
  arguments.w1 = mine(operands_.w1);
  arguments.w1_up = mine(operands_.w1_up);
  arguments.w2 = mine(operands_.w2);
  arguments.shared_w1 = given(operands_.shared_w1);
  arguments.shared_w1_up = given(operands_.shared_w1_up);
  arguments.shared_w2 = given(operands_.shared_w2);
  arguments.shared_weights = given(input.shared_weights);
  y.assign(static_cast<std::size_t>(input.tokens * shape_.n), kPoison);
  arguments.y = y.data();
  ExecutorOptions options;
  options.deadline = deadline;
  options.compute_threads = 1 + static_cast<int>(rank % 2);
  return operations_[rank]->run(arguments, options);
}

std::vector<Tensor> MoeLayer::run_checked(const std::vector<MoeInput>& inputs) {
  std::vector<Tensor> y(fabric_.world());
  const auto statuses =
      run_ranks(fabric_.world(), [&](std::uint32_t rank) { return run(rank, inputs[rank], y[rank]); });
  for (const Status& status : statuses) CHECK_MESSAGE(status.ok(), status.to_string());
  for (std::uint32_t rank = 0; rank < fabric_.world(); ++rank) {
    const std::size_t wrong = wrong_elements(shape_, weights_, inputs[rank], y[rank]);
    CHECK_MESSAGE(wrong == 0, "rank ", rank, ": ", wrong, " of ", y[rank].size(), " elements wrong");
    CHECK_FALSE(operations_[rank]->refused());
  }
  CHECK(fabric_.error() == "");
  return y;
}

void MoeLayer::run_refused(const std::vector<MoeInput>& inputs, StatusCode code, const std::string& text) {
  CAPTURE(text);
  std::vector<Tensor> y(world());
  const auto statuses =
      run_ranks(world(), [&](std::uint32_t rank) { return run(rank, inputs[rank], y[rank]); });
  const std::uint64_t nodes = fabric_.options().nodes;
  // Counts of 16 bytes, of every expert and of every node, in whole 128 bytes.
  const auto experts = static_cast<std::uint64_t>(shape_.experts);
  const std::uint64_t counts = (16 + (experts + nodes) * 4 + 127) / 128 * 128;
  for (std::uint32_t rank = 0; rank < world(); ++rank) {
    CHECK(statuses[rank].code() == code);
    CHECK(statuses[rank].text() == text);
    CHECK(operations_[rank]->refused());
    CHECK(operations_[rank]->wire_bytes() == (nodes - 1) * counts);
    CHECK(std::count(y[rank].begin(), y[rank].end(), kPoison) == std::ssize(y[rank]));
  }
  CHECK(fabric_.error() == "");
}

}  // namespace mkernel::test

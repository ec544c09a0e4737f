// Random weights and tokens of a mixture of experts, and routings of different skew.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mkernel/ops.h"
#include "tests/support/moe_reference.h"

namespace mkernel::test {

/// Distinct experts of one token of one rank.
using Router = std::function<std::vector<std::int32_t>(std::uint32_t rank, std::int64_t token)>;

Router random_router(const MoeShape& shape, std::uint64_t seed);
/// Experts with low numbers far more often: weight 1 / (1 + number).
Router zipf_router(const MoeShape& shape, std::uint64_t seed);
Router one_expert(std::int32_t expert);

/// Of all experts.
MoeWeights random_weights(const MoeShape& shape, std::uint64_t seed);
/// `columns` of dense row-major matrices [k, n], as matrices of their own in `layout`.
std::vector<std::uint16_t> laid_out(const std::vector<std::uint16_t>& matrices, std::int64_t k,
                                    std::int64_t n, Range columns, Layout layout);
/// The same as operands of launches, of all experts. `apart`: the halves of w1 are two operands.
struct MoeWeightOperands {
  std::vector<std::uint16_t> w1, w1_up, w2, shared_w1, shared_w1_up, shared_w2;
};
MoeWeightOperands weight_operands(const MoeShape& shape, const MoeWeights& weights, bool apart);
/// Of one of them what belongs to the experts of a rank.
std::span<const std::uint16_t> own_experts(const MoeShape& shape, std::uint32_t world, std::uint32_t rank,
                                           const std::vector<std::uint16_t>& all);

/// `tokens` tokens of one rank. With a shared expert and an odd seed they have weights of it, too.
MoeInput random_input(const MoeShape& shape, std::uint32_t rank, std::int64_t tokens, const Router& router,
                      std::uint64_t seed);
/// Of every rank.
using TokensOfRank = std::function<std::int64_t(std::uint32_t rank)>;
std::vector<MoeInput> random_inputs(const MoeShape& shape, std::uint32_t world, const Router& router,
                                    const TokensOfRank& tokens, std::uint64_t seed);

/// Odd sizes, so that no number is a multiple of another one, nor of a tile's; no world here divides the
/// experts.
inline constexpr MoeShape kOddMoe{
    .max_tokens = 60, .hidden = 72, .n = 264, .intermediate = 136, .experts = 11, .topk = 3};

/// A shape and a world that both executors are tested with.
struct MoeCase {
  std::string name;
  MoeShape shape;
  std::uint32_t nodes = 1, ranks = 1;  ///< ranks of a node
  bool across_nodes = false;           ///< ranks are not numbered node by node
};
std::vector<MoeCase> moe_cases();

/// `launches` launches with other inputs, routings and numbers of tokens each, on some ranks none; the
/// outputs of all. `Ranks`: MoeLayer or GpuMoeRanks.
template <class Ranks>
std::vector<std::vector<std::uint16_t>> run_launches(Ranks& ranks, int launches) {
  std::vector<std::vector<std::uint16_t>> all;
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

}  // namespace mkernel::test

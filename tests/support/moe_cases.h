// Random weights and tokens of a mixture of experts, and routings of different skew.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
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

}  // namespace mkernel::test

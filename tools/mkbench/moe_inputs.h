// What the measurements of the mixture of experts share on both executors: routing, and how a shape is named.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "mkernel/ops.h"

namespace mkernel::bench {

/// Of max_tokens tokens of one rank.
struct MoeRouting {
  std::vector<std::int32_t> topk;
  std::vector<float> weights;
};

/// Distinct random experts per token, positive weights that sum to one.
MoeRouting random_routing(const MoeShape& shape, std::uint64_t seed);

/// Weights are scaled so that activations stay of order one, as in a trained layer. `rows`: of the matrix.
float weight_scale(std::int64_t rows);

/// How far an element of y may be from `reference`, which sums the experts' outputs in fp32 or better, with
/// activations that are rounded as in the operation. `magnitude`: the sum of absolute values. Finished rows
/// and the sums of nodes are rounded, the result once more; where fp32 noise tips the rounding of an
/// activation the other way, one term differs by a unit.
struct MoeBound {
  double relative, slack;
  static MoeBound of(const MoeShape& shape);
};

/// {op, m, n, k, ...} and "T4096 H1024 ...", tokens of all ranks together.
nlohmann::json json_of(const MoeShape& shape, std::uint32_t world);
std::string text_of(const MoeShape& shape, std::uint32_t world);

}  // namespace mkernel::bench

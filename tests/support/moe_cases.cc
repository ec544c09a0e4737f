#include "tests/support/moe_cases.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/support/random_tensor.h"

namespace mkernel::test {

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

Router zipf_router(const MoeShape& shape, std::uint64_t seed) {
  return [shape, seed](std::uint32_t rank, std::int64_t token) {
    std::mt19937_64 random(seed * 1000003 + rank * 1009 + static_cast<std::uint64_t>(token));
    std::vector<double> weight;
    for (std::int64_t i = 0; i < shape.experts; ++i) weight.push_back(1.0 / double(1 + i));
    std::vector<std::int32_t> chosen;
    for (std::int64_t j = 0; j < shape.topk; ++j) {
      std::discrete_distribution<std::int32_t> next(weight.begin(), weight.end());
      chosen.push_back(next(random));
      weight[static_cast<std::size_t>(chosen.back())] = 0;
    }
    return chosen;
  };
}

Router one_expert(std::int32_t expert) {
  return [expert](std::uint32_t, std::int64_t) { return std::vector<std::int32_t>{expert}; };
}

MoeWeights random_weights(const MoeShape& shape, std::uint64_t seed) {
  const std::int64_t columns = shape.intermediate > 0 ? 2 * shape.intermediate : shape.n;
  return {random_tensor(shape.experts * shape.hidden * columns, shape.dtype, seed),
          random_tensor(shape.experts * shape.intermediate * shape.n, shape.dtype, seed + 1),
          random_tensor(shape.hidden * 2 * shape.shared_intermediate, shape.dtype, seed + 2),
          random_tensor(shape.shared_intermediate * shape.n, shape.dtype, seed + 3)};
}

MoeInput random_input(const MoeShape& shape, std::uint32_t rank, std::int64_t tokens, const Router& router,
                      std::uint64_t seed) {
  MoeInput input{tokens, random_tensor(tokens * shape.hidden, shape.dtype, seed + rank), {}, {}, {}};
  std::mt19937_64 random(seed * 31 + rank);
  std::uniform_real_distribution<float> weight(0.1F, 1.0F);
  for (std::int64_t token = 0; token < tokens; ++token) {
    const auto chosen = router(rank, token);
    REQUIRE(static_cast<std::int64_t>(chosen.size()) == shape.topk);
    input.topk.insert(input.topk.end(), chosen.begin(), chosen.end());
    for (std::int64_t j = 0; j < shape.topk; ++j) input.weights.push_back(weight(random));
    if (shape.shared_intermediate > 0 && seed % 2 == 1) input.shared_weights.push_back(weight(random));
  }
  return input;
}

std::vector<std::uint16_t> laid_out(const std::vector<std::uint16_t>& matrices, std::int64_t k,
                                    std::int64_t n, Range columns, Layout layout) {
  std::vector<std::uint16_t> out;
  const auto add = [&](std::int64_t matrix, std::int64_t row, std::int64_t column) {
    out.push_back(matrices[static_cast<std::size_t>((matrix * k + row) * n + column)]);
  };
  const std::int64_t count = k > 0 ? std::ssize(matrices) / (k * n) : 0;
  for (std::int64_t matrix = 0; matrix < count; ++matrix) {
    if (layout == Layout::kRowMajor) {
      for (std::int64_t row = 0; row < k; ++row)
        for (std::int64_t column = columns.begin; column < columns.end; ++column) add(matrix, row, column);
    } else {
      for (std::int64_t column = columns.begin; column < columns.end; ++column)
        for (std::int64_t row = 0; row < k; ++row) add(matrix, row, column);
    }
  }
  return out;
}

MoeWeightOperands weight_operands(const MoeShape& shape, const MoeWeights& weights, bool apart) {
  MoeWeightOperands made;
  const auto first = [&](const std::vector<std::uint16_t>& w1, std::int64_t inner, auto& whole, auto& up) {
    const std::int64_t all = inner > 0 ? 2 * inner : shape.n;
    const auto part = [&](Range columns) { return laid_out(w1, shape.hidden, all, columns, shape.w_layout); };
    whole = part({0, apart ? inner : all});
    if (apart) up = part({inner, all});
  };
  const auto second = [&](const std::vector<std::uint16_t>& w2, std::int64_t inner) {
    return laid_out(w2, inner, shape.n, {0, shape.n}, shape.w_layout);
  };
  first(weights.w1, shape.intermediate, made.w1, made.w1_up);
  made.w2 = second(weights.w2, shape.intermediate);
  if (const std::int64_t inner = shape.shared_intermediate; inner > 0) {
    first(weights.shared_w1, inner, made.shared_w1, made.shared_w1_up);
    made.shared_w2 = second(weights.shared_w2, inner);
  }
  return made;
}

std::span<const std::uint16_t> own_experts(const MoeShape& shape, std::uint32_t world, std::uint32_t rank,
                                           const std::vector<std::uint16_t>& all) {
  const Range own = block_range(shape.experts, world, rank);
  const std::int64_t of_expert = std::ssize(all) / shape.experts;
  return std::span(all).subspan(static_cast<std::size_t>(of_expert * own.begin),
                                static_cast<std::size_t>(of_expert * own.size()));
}

std::vector<MoeCase> moe_cases() {
  std::vector<MoeCase> cases;
  const auto add = [&](const std::string& name, const MoeShape& shape, std::uint32_t nodes,
                       std::uint32_t ranks, bool across_nodes = false) {
    cases.push_back({name + " on " + std::to_string(nodes) + " x " + std::to_string(ranks), shape, nodes,
                     ranks, across_nodes});
  };
  for (const auto& [nodes, ranks] :
       {std::pair{1U, 1U}, {1U, 2U}, {1U, 4U}, {2U, 1U}, {2U, 2U}, {3U, 1U}, {4U, 1U}}) {
    for (const std::int64_t intermediate : {std::int64_t{0}, kOddMoe.intermediate}) {
      for (const DataType type : {DataType::kBf16, DataType::kF16}) {
        MoeShape shape = kOddMoe;
        shape.intermediate = intermediate;
        shape.dtype = type;
        shape.w_layout = (type == DataType::kBf16) == (ranks > 1) ? Layout::kColumnMajor : Layout::kRowMajor;
        add("both types and layouts", shape, nodes, ranks);
      }
    }
  }
  add("ranks in another order", kOddMoe, 2, 2, true);
  add("ranks in another order", kOddMoe, 2, 3, true);
  MoeShape shape = kOddMoe;
  shape.weights_on_input = true;
  add("weights before the first product", shape, 1, 2);
  add("weights before the first product", shape, 2, 2);
  shape = kOddMoe;
  shape.shared_intermediate = 24;
  add("a shared expert", shape, 1, 4);
  add("a shared expert", shape, 2, 2);
  const MoeShape small{.max_tokens = 20, .hidden = 16, .n = 16, .intermediate = 8, .experts = 3, .topk = 3};
  add("fewer experts than ranks, all of them chosen", small, 1, 4);
  add("fewer experts than ranks, all of them chosen", small, 2, 2);
  shape = small;
  shape.experts = 61;
  shape.topk = 16;
  add("the longest top-k", shape, 1, 2);
  add("the longest top-k", shape, 2, 2);
  for (const std::int64_t experts : {1023, 1024}) {
    shape.experts = experts;
    add("the most experts, the longest top-k", shape, 1, 2);
    add("the most experts, the longest top-k", shape, 2, 2);
  }
  return cases;
}

std::vector<MoeInput> random_inputs(const MoeShape& shape, std::uint32_t world, const Router& router,
                                    const TokensOfRank& tokens, std::uint64_t seed) {
  std::vector<MoeInput> made;
  for (std::uint32_t rank = 0; rank < world; ++rank)
    made.push_back(random_input(shape, rank, tokens(rank), router, seed));
  return made;
}

}  // namespace mkernel::test

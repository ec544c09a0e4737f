#include "tools/mkbench/moe_inputs.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/cpu/memory/convert.h"
#include "tools/mkbench/random.h"
#include "tools/mkbench/workload.h"

namespace mkernel::bench {

MoeRouting random_routing(const MoeShape& shape, std::uint64_t seed) {
  MoeRouting routing;
  std::uint64_t draw = 0;
  for (std::int64_t token = 0; token < shape.max_tokens; ++token) {
    std::vector<std::int32_t> chosen;
    while (static_cast<std::int64_t>(chosen.size()) < shape.topk) {
      const auto expert =
          static_cast<std::int32_t>(mix(seed, draw++) % static_cast<std::uint64_t>(shape.experts));
      if (std::find(chosen.begin(), chosen.end(), expert) == chosen.end()) chosen.push_back(expert);
    }
    std::vector<float> weight;
    float total = 0;
    for (std::int64_t j = 0; j < shape.topk; ++j) total += weight.emplace_back(1.1F + uniform(seed, draw++));
    for (float& w : weight) w /= total;
    routing.topk.insert(routing.topk.end(), chosen.begin(), chosen.end());
    routing.weights.insert(routing.weights.end(), weight.begin(), weight.end());
  }
  return routing;
}

float weight_scale(std::int64_t rows) {
  return std::sqrt(3.0F / static_cast<float>(rows));
}

MoeBound MoeBound::of(const MoeShape& shape) {
  const double roundoff = 1.01 * kernels::rounding_unit(shape.dtype);
  return {roundoff, roundoff * (shape.intermediate > 0 ? 0.1 : 0) + 1e-5};
}

nlohmann::json json_of(const MoeShape& shape, std::uint32_t world) {
  return {{"op", to_string(OpKind::kMoeDispatchGemm)},
          {"m", shape.max_tokens * world},
          {"n", shape.n},
          {"k", shape.hidden},
          {"intermediate", shape.intermediate},
          {"shared_intermediate", shape.shared_intermediate},
          {"experts", shape.experts},
          {"topk", shape.topk},
          {"dtype", to_string(shape.dtype)}};
}

std::string text_of(const MoeShape& shape, std::uint32_t world) {
  return "T" + std::to_string(shape.max_tokens * world) + " H" + std::to_string(shape.hidden) + " I" +
         std::to_string(shape.intermediate) +
         (shape.shared_intermediate > 0 ? "+" + std::to_string(shape.shared_intermediate) : "") + " E" +
         std::to_string(shape.experts) + " top-" + std::to_string(shape.topk);
}

}  // namespace mkernel::bench

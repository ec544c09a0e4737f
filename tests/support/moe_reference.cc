#include "tests/support/moe_reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "kernels/cpu/memory/convert.h"
#include "tests/support/random_tensor.h"
#include "tests/support/rounding.h"

namespace mkernel::test {
namespace {

constexpr double kSmallest = 0x1p-24;  // rounding error among the subnormals of fp16

/// x [k] times matrix [k, n] in the io type; an fp32 sum in any order is off by (k + 2) units of the sum of
/// magnitudes, and by what the terms are off.
std::vector<Expected> multiply(DataType dtype, const std::vector<Expected>& x, const std::uint16_t* matrix,
                               std::int64_t n) {
  std::vector<Expected> out(static_cast<std::size_t>(n));
  std::vector<float> weights(out.size());  // a row of the matrix
  const double unit = (double(x.size()) + 2) * kFloatUnit;
  for (std::size_t i = 0; i < x.size(); ++i) {
    kernels::widen(dtype, matrix + i * weights.size(), weights.data(), weights.size());
    const double value = x[i].value;
    const double tolerance = x[i].tolerance + unit * (std::abs(value) + x[i].tolerance);
    for (std::size_t j = 0; j < weights.size(); ++j) {
      const double weight = weights[j];
      out[j].value += value * weight;
      out[j].tolerance += std::abs(weight) * tolerance;
    }
  }
  return out;
}

/// silu(g) * u, rounded to the io type. |silu'| <= 1.1; exp and division in fp32 cost a few units.
Expected gated(DataType dtype, const Expected& g, const Expected& u) {
  const double silu = g.value / (1 + std::exp(-g.value));
  const double silu_off = 1.1 * g.tolerance + 16 * kFloatUnit * (std::abs(silu) + std::abs(g.value));
  const double value = silu * u.value;
  const double off = silu_off * (std::abs(u.value) + u.tolerance) + std::abs(silu) * u.tolerance +
                     2 * kFloatUnit * std::abs(value);
  return {value, off + kernels::rounding_unit(dtype) * (std::abs(value) + off) + kSmallest};
}

/// Expert `number` of those whose matrices lie at `w1` and `w2`.
std::vector<Expected> expert(const MoeShape& shape, const std::vector<std::uint16_t>& w1,
                             const std::vector<std::uint16_t>& w2, std::int64_t intermediate,
                             std::int64_t number, const std::vector<Expected>& x) {
  const std::int64_t columns = intermediate > 0 ? 2 * intermediate : shape.n;
  auto first = multiply(shape.dtype, x, w1.data() + number * shape.hidden * columns, columns);
  if (intermediate == 0) return first;
  std::vector<Expected> hidden;
  for (std::int64_t i = 0; i < intermediate; ++i) {
    const auto gate = static_cast<std::size_t>(i);
    hidden.push_back(gated(shape.dtype, first[gate], first[gate + static_cast<std::size_t>(intermediate)]));
  }
  return multiply(shape.dtype, hidden, w2.data() + number * intermediate * shape.n, shape.n);
}

}  // namespace

std::vector<Expected> moe_row(const MoeShape& shape, const MoeWeights& weights, const MoeInput& input,
                              std::int64_t token) {
  std::vector<Expected> x;
  for (std::int64_t i = 0; i < shape.hidden; ++i) {
    x.push_back({value_of(shape.dtype, input.x[static_cast<std::size_t>(token * shape.hidden + i)]), 0});
  }
  const auto times = [&](double weight) {
    std::vector<Expected> scaled;
    for (const Expected& element : x) {
      const double value = weight * element.value;
      scaled.push_back(
          {value, (kernels::rounding_unit(shape.dtype) + 2 * kFloatUnit) * std::abs(value) + kSmallest});
    }
    return scaled;
  };
  std::vector<Expected> y(static_cast<std::size_t>(shape.n));
  std::vector<double> magnitude(y.size());
  const auto add = [&](double weight, const std::vector<Expected>& out) {
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i].value += weight * out[i].value;
      y[i].tolerance += std::abs(weight) * out[i].tolerance;
      y[i].tolerance += std::abs(weight) * kSmallest;
      magnitude[i] += std::abs(weight * out[i].value) + std::abs(weight) * out[i].tolerance;
    }
  };
  for (std::int64_t j = 0; j < shape.topk; ++j) {
    const auto entry = static_cast<std::size_t>(token * shape.topk + j);
    const double weight = input.weights[entry];
    const bool on_input = shape.weights_on_input;
    add(on_input ? 1 : weight, expert(shape, weights.w1, weights.w2, shape.intermediate, input.topk[entry],
                                      on_input ? times(weight) : x));
  }
  if (const std::int64_t inner = shape.shared_intermediate; inner > 0) {
    const auto& factors = input.shared_weights;
    add(factors.empty() ? 1 : factors[static_cast<std::size_t>(token)],
        expert(shape, weights.shared_w1, weights.shared_w2, inner, 0, x));
  }
  // Finished rows and sums of nodes travel in the io type: one rounding of each, together at most two units
  // of all magnitudes. Then the fp32 sums, then the final rounding.
  const double unit = kernels::rounding_unit(shape.dtype);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i].tolerance += (unit * (2 + unit) + (double(shape.topk) + 5) * kFloatUnit) * magnitude[i];
    y[i].tolerance += unit * (std::abs(y[i].value) + y[i].tolerance) + double(shape.topk + 2) * kSmallest;
  }
  return y;
}

std::size_t wrong_elements(const MoeShape& shape, const MoeWeights& weights, const MoeInput& input,
                           const std::vector<std::uint16_t>& y) {
  if (input.tokens > 0) static_cast<void>(y.at(static_cast<std::size_t>(input.tokens * shape.n - 1)));
  std::atomic<std::int64_t> next = 0;
  std::atomic<std::size_t> wrong = 0;
  const auto compare = [&] {
    for (std::int64_t token = next++; token < input.tokens; token = next++) {
      auto at = static_cast<std::size_t>(token * shape.n);
      for (const Expected& expected : moe_row(shape, weights, input, token)) {
        const double seen = value_of(shape.dtype, y[at++]);
        if (!(std::abs(seen - expected.value) <= expected.tolerance)) ++wrong;
      }
    }
  };
  // Most of the time of whoever compares: on all cores, where there are enough tokens for the threads to pay.
  constexpr std::int64_t kTokensOfThread = 8;
  const std::int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::jthread> threads;
  for (std::int64_t thread = 1; thread < std::min(cores, input.tokens / kTokensOfThread); ++thread)
    threads.emplace_back(compare);
  compare();
  threads.clear();  // waits for them
  return wrong;
}

}  // namespace mkernel::test

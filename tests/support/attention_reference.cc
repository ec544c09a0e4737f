#include "tests/support/attention_reference.h"

#include <algorithm>
#include <cmath>

#include "tests/support/random_tensor.h"

namespace mkernel::test {
namespace {

constexpr double kFloatUnit = 0x1p-24;

double at(const AttentionShape& shape, const std::vector<std::uint16_t>& tensor, std::int64_t heads,
          std::int64_t batch, std::int64_t position, std::int64_t head, std::int64_t i) {
  const std::int64_t index = ((batch * shape.sequence + position) * heads + head) * shape.head_dim + i;
  return value_of(shape.dtype, tensor[static_cast<std::size_t>(index)]);
}

}  // namespace

std::vector<Expected> attention_row(const AttentionShape& shape, const AttentionTensors& tensors,
                                    std::int64_t batch, std::int64_t position, std::int64_t head) {
  const double scale = shape.scale > 0 ? shape.scale : 1 / std::sqrt(double(shape.head_dim));
  const std::int64_t kv_head = head * shape.kv_heads / shape.heads;
  const std::int64_t keys = shape.causal ? position + 1 : shape.sequence;
  std::vector<double> score(static_cast<std::size_t>(keys));
  double magnitude = 0;  // of the largest dot product, for the tolerance
  for (std::int64_t key = 0; key < keys; ++key) {
    double dot = 0, sum = 0;
    for (std::int64_t i = 0; i < shape.head_dim; ++i) {
      const double product = at(shape, tensors.q, shape.heads, batch, position, head, i) *
                             at(shape, tensors.k, shape.kv_heads, batch, key, kv_head, i);
      dot += product;
      sum += std::abs(product);
    }
    score[static_cast<std::size_t>(key)] = dot * scale;
    magnitude = std::max(magnitude, sum * scale);
  }
  const double top = *std::max_element(score.begin(), score.end());
  double total = 0;
  for (double& s : score) total += s = std::exp(s - top);
  // Every score is wrong by at most (head_dim + 3) units of its magnitude, an exponential by that and a few
  // units more, twice (its own maximum, later rescales); sums over the keys add one unit per term, both in
  // the numerator and in the denominator.
  const double relative =
      4 * (double(shape.head_dim) + 3) * kFloatUnit * magnitude + 2 * (double(keys) + 32) * kFloatUnit;
  std::vector<Expected> row(static_cast<std::size_t>(shape.head_dim));
  for (std::int64_t i = 0; i < shape.head_dim; ++i) {
    double sum = 0, absolute = 0;
    for (std::int64_t key = 0; key < keys; ++key) {
      const double term = score[static_cast<std::size_t>(key)] / total *
                          at(shape, tensors.v, shape.kv_heads, batch, key, kv_head, i);
      sum += term;
      absolute += std::abs(term);
    }
    const double before_rounding = relative * absolute;
    row[static_cast<std::size_t>(i)] = {
        sum,
        before_rounding + kernels::rounding_unit(shape.dtype) * (std::abs(sum) + before_rounding) + 0x1p-24};
  }
  return row;
}

std::vector<std::int64_t> attention_positions(const AttentionShape& shape, std::int64_t world,
                                              std::int64_t rank) {
  std::vector<std::int64_t> positions;
  const auto append = [&](std::int64_t parts, std::int64_t part) {
    const std::int64_t end = shape.sequence * (part + 1) / parts;
    for (std::int64_t p = shape.sequence * part / parts; p < end; ++p) positions.push_back(p);
  };
  if (shape.causal) {
    append(2 * world, rank);
    append(2 * world, 2 * world - 1 - rank);
  } else {
    append(world, rank);
  }
  return positions;
}

}  // namespace mkernel::test

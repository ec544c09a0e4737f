#include "tests/support/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/random_tensor.h"

namespace mkernel::test {
namespace {

std::int64_t keys_of(const AttentionShape& shape) {
  return shape.keys > 0 ? shape.keys : shape.sequence;
}

/// One row of a tensor [batch, positions, heads, head_dim].
const std::uint16_t* row_of(const AttentionShape& shape, const std::vector<std::uint16_t>& tensor,
                            std::int64_t heads, std::int64_t positions, std::int64_t batch,
                            std::int64_t position, std::int64_t head) {
  return tensor.data() + ((batch * positions + position) * heads + head) * shape.head_dim;
}

/// Its elements; `values` has room for them.
void read_row(const AttentionShape& shape, const std::uint16_t* row, std::vector<double>& values) {
  std::transform(row, row + shape.head_dim, values.begin(),
                 [&](std::uint16_t bits) { return value_of(shape.dtype, bits); });
}

/// The value of a sum, and what it may be off.
Expected rounded(double sum, double before_rounding, double unit) {
  return {sum, before_rounding + unit * (std::abs(sum) + before_rounding) + 0x1p-24};
}

}  // namespace

bool is_near(double value, const Expected& expected) {
  return value == expected.value || std::abs(value - expected.value) <= expected.tolerance;
}

ExpectedRow attention_row(const AttentionShape& shape, const AttentionTensors& tensors, std::int64_t batch,
                          std::int64_t position, std::int64_t head, Weights weights) {
  const double scale = shape.scale > 0 ? shape.scale : 1 / std::sqrt(double(shape.head_dim));
  const std::int64_t kv_head = head * shape.kv_heads / shape.heads, all = keys_of(shape);
  const std::int64_t own = position + all - shape.sequence;  // the key at the query's position
  const std::int64_t right = shape.causal ? 0 : shape.window_right;
  const std::int64_t end = right < 0 ? all : std::min(all, own + right + 1);
  const std::int64_t begin = shape.window_left < 0 ? 0 : std::max<std::int64_t>(0, own - shape.window_left);
  const std::int64_t keys = end - begin;
  ExpectedRow row{std::vector<Expected>(static_cast<std::size_t>(shape.head_dim)),
                  {-std::numeric_limits<double>::infinity(), 0}};
  if (keys <= 0) return row;
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const auto kv_row = [&](const std::vector<std::uint16_t>& tensor, std::int64_t key) {
    return row_of(shape, tensor, shape.kv_heads, all, batch, begin + key, kv_head);
  };
  std::vector<double> query(dim), of_key(dim);
  read_row(shape, row_of(shape, tensors.q, shape.heads, shape.sequence, batch, position, head), query);
  std::vector<double> score(static_cast<std::size_t>(keys));
  double magnitude = 0;  // of the largest dot product, for the tolerance
  for (std::int64_t key = 0; key < keys; ++key) {
    read_row(shape, kv_row(tensors.k, key), of_key);
    double dot = 0, sum = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      const double product = query[i] * of_key[i];
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
  const double rounding = kernels::rounding_unit(shape.dtype);
  const double of_terms = relative + (weights == Weights::kRounded ? rounding : 0);
  // Weights below the normal numbers of f16 are rounded to a multiple of 2^-24.
  const double of_weights =
      weights == Weights::kRounded && shape.dtype == DataType::kF16 ? double(keys) * 0x1p-25 / total : 0;
  std::vector<double> sums(dim), magnitudes(dim);
  for (std::int64_t key = 0; key < keys; ++key) {
    const double weight = score[static_cast<std::size_t>(key)] / total;
    read_row(shape, kv_row(tensors.v, key), of_key);
    for (std::size_t i = 0; i < dim; ++i) {
      sums[i] += weight * of_key[i];
      magnitudes[i] += std::abs(weight * of_key[i]);
    }
  }
  for (std::size_t i = 0; i < dim; ++i)
    row.out[i] = rounded(sums[i], of_terms * magnitudes[i] + of_weights, rounding);
  const double lse = top + std::log(total);
  row.lse = {lse, relative + 8 * kFloatUnit * (std::abs(top) + std::abs(lse) + 1)};
  return row;
}

AttentionTensors random_attention(const AttentionShape& shape, std::uint64_t seed, float scale) {
  const std::int64_t row = shape.batch * shape.head_dim;
  return {random_tensor(row * shape.sequence * shape.heads, shape.dtype, seed, scale),
          random_tensor(row * keys_of(shape) * shape.kv_heads, shape.dtype, seed + 1, scale),
          random_tensor(row * keys_of(shape) * shape.kv_heads, shape.dtype, seed + 2)};
}

std::vector<std::uint16_t> poisoned_output(const AttentionShape& shape) {
  return std::vector<std::uint16_t>(
      static_cast<std::size_t>(shape.batch * shape.sequence * shape.heads * shape.head_dim), kPoison);
}

std::vector<float> poisoned_lse(const AttentionShape& shape) {
  return std::vector<float>(static_cast<std::size_t>(shape.batch * shape.sequence * shape.heads),
                            std::numeric_limits<float>::quiet_NaN());
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

std::vector<std::uint16_t> rows_of_rank(const AttentionShape& shape, const std::vector<std::uint16_t>& whole,
                                        std::int64_t heads, std::int64_t world, std::int64_t rank) {
  std::vector<std::uint16_t> rows;
  const std::int64_t width = heads * shape.head_dim;
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (const std::int64_t position : attention_positions(shape, world, rank)) {
      const auto begin = whole.begin() + (batch * shape.sequence + position) * width;
      rows.insert(rows.end(), begin, begin + width);
    }
  }
  return rows;
}

std::size_t wrong_attention_of_rank(const AttentionShape& shape, const AttentionTensors& tensors,
                                    std::int64_t world, std::int64_t rank,
                                    const std::vector<std::uint16_t>& out, const std::vector<float>& lse,
                                    Weights weights, std::int64_t step) {
  const std::vector<std::int64_t> positions = attention_positions(shape, world, rank);
  const auto rows = static_cast<std::int64_t>(positions.size());
  std::size_t wrong = 0;
  for (std::int64_t at = 0; at < shape.batch * shape.heads * rows; at += step) {  // [batch, heads, rows]
    const std::int64_t i = at % rows, head = at / rows % shape.heads, batch = at / rows / shape.heads;
    const ExpectedRow expected =
        attention_row(shape, tensors, batch, positions[static_cast<std::size_t>(i)], head, weights);
    const std::uint16_t* row = row_of(shape, out, shape.heads, rows, batch, i, head);
    for (const Expected& value : expected.out)
      if (!is_near(value_of(shape.dtype, *row++), value)) ++wrong;
    if (!lse.empty() && !is_near(lse[static_cast<std::size_t>(at)], expected.lse)) ++wrong;
  }
  return wrong;
}

std::size_t wrong_attention(const AttentionShape& shape, const AttentionTensors& tensors,
                            const std::vector<std::uint16_t>& out, const std::vector<float>& lse,
                            Weights weights, std::int64_t step) {
  return wrong_attention_of_rank(shape, tensors, 1, 0, out, lse, weights, step);
}

}  // namespace mkernel::test

#include "tests/support/attention_backward_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/random_tensor.h"

namespace mkernel::test {
namespace {

/// A sum, the sum of its terms' magnitudes, and how far the terms may be off.
struct Sum {
  double value = 0, magnitude = 0, error = 0;

  void add(double factor, double factor_error, double other) {
    value += factor * other;
    magnitude += std::abs(factor * other);
    error += factor_error * std::abs(other);
  }
  /// A part of the sum, rounded to a multiple of itself or of the smallest number.
  void add_rounded(const Sum& part, double rounding, double smallest) {
    value += part.value;
    magnitude += part.magnitude;
    error += part.error + rounding * (std::abs(part.value) + part.error) + smallest;
  }
};

/// A number of fp32 arithmetic with the error that it may have.
struct Uncertain {
  double value = 0, error = 0;
};

/// Rows of one head as doubles.
class Rows {
 public:
  Rows(const AttentionShape& shape, const std::vector<std::uint16_t>& tensor, std::int64_t heads,
       std::int64_t positions, std::int64_t batch, std::int64_t head)
      : dim_(shape.head_dim), values_(static_cast<std::size_t>(positions * dim_)) {
    for (std::int64_t row = 0; row < positions; ++row) {
      for (std::int64_t i = 0; i < dim_; ++i) {
        const std::int64_t at = ((batch * positions + row) * heads + head) * dim_ + i;
        values_[static_cast<std::size_t>(row * dim_ + i)] =
            value_of(shape.dtype, tensor[static_cast<std::size_t>(at)]);
      }
    }
  }
  double at(std::int64_t row, std::int64_t i) const {
    return values_[static_cast<std::size_t>(row * dim_ + i)];
  }
  /// With a row of `other`.
  Uncertain dot(std::int64_t row, const Rows& other, std::int64_t other_row) const {
    const double *mine = values_.data() + row * dim_, *theirs = other.values_.data() + other_row * dim_;
    double sum = 0, magnitude = 0;
    for (std::int64_t i = 0; i < dim_; ++i) {
      const double product = mine[i] * theirs[i];
      sum += product;
      magnitude += std::abs(product);
    }
    return {sum, (double(dim_) + 2) * kFloatUnit * magnitude};
  }

 private:
  std::int64_t dim_;
  std::vector<double> values_;
};

using Sums = std::vector<Sum>;  // [head_dim]

/// What a query and a key make of each other: the weight, and the gradient of the score times its scale.
struct Pair {
  Uncertain weight, d_score;
};

/// The pass of one head of queries.
class HeadPass {
 public:
  HeadPass(const AttentionShape& shape, const AttentionBackwardTensors& tensors, Weights weights,
           std::int64_t batch, std::int64_t head)
      : shape_(shape),
        keys_(shape.keys > 0 ? shape.keys : shape.sequence),
        scale_(shape.scale > 0 ? shape.scale : 1 / std::sqrt(double(shape.head_dim))),
        rounding_(weights == Weights::kRounded ? kernels::rounding_unit(shape.dtype) : 0),
        smallest_(weights == Weights::kRounded && shape.dtype == DataType::kF16 ? 0x1p-25 : 0),
        lse_(tensors.lse.data() + (batch * shape.heads + head) * shape.sequence),
        q_(shape, tensors.forward.q, shape.heads, shape.sequence, batch, head),
        d_out_(shape, tensors.d_out, shape.heads, shape.sequence, batch, head),
        k_(shape, tensors.forward.k, shape.kv_heads, keys_, batch, head * shape.kv_heads / shape.heads),
        v_(shape, tensors.forward.v, shape.kv_heads, keys_, batch, head * shape.kv_heads / shape.heads) {
    const Rows out(shape, tensors.out, shape.heads, shape.sequence, batch, head);
    for (std::int64_t i = 0; i < shape.sequence; ++i) delta_.push_back(out.dot(i, d_out_, i));
  }

  /// Of query `i`.
  Sums d_q(std::int64_t i) const {
    Sums sums(static_cast<std::size_t>(shape_.head_dim));
    for (std::int64_t j = 0; j < keys_; ++j) {
      if (!sees(i, j)) continue;
      const Uncertain d_score = pair(i, j).d_score;
      for (std::int64_t c = 0; c < shape_.head_dim; ++c)
        sums[static_cast<std::size_t>(c)].add(d_score.value, d_score.error, k_.at(j, c));
    }
    return sums;
  }
  /// Of key `j`, what `queries` give it; its sums are those of all heads of queries that share it.
  void add_key(std::int64_t j, const std::vector<std::int64_t>& queries, Sums& d_k, Sums& d_v) const {
    for (const std::int64_t i : queries) {
      if (!sees(i, j)) continue;
      const Pair of = pair(i, j);
      for (std::int64_t c = 0; c < shape_.head_dim; ++c) {
        d_k[static_cast<std::size_t>(c)].add(of.d_score.value, of.d_score.error, q_.at(i, c));
        d_v[static_cast<std::size_t>(c)].add(of.weight.value, of.weight.error, d_out_.at(i, c));
      }
    }
  }

 private:
  /// The last query stands where the last key does.
  bool sees(std::int64_t i, std::int64_t j) const {
    const std::int64_t ahead = j - (i + keys_ - shape_.sequence);  // of the query's own position
    const std::int64_t right = shape_.causal ? 0 : shape_.window_right;
    return (right < 0 || ahead <= right) && (shape_.window_left < 0 || -ahead <= shape_.window_left);
  }
  Pair pair(std::int64_t i, std::int64_t j) const {
    const Uncertain& delta = delta_[static_cast<std::size_t>(i)];
    const Uncertain dot = q_.dot(i, k_, j);
    const double score = dot.value * scale_, lse = lse_[i];
    const double p = std::exp(score - lse);
    // The exponent is off by the dot product, and by roundings of the score and of the log-sum-exp.
    const double p_error =
        p * (2 * dot.error * scale_ + 8 * kFloatUnit * (std::abs(score) + std::abs(lse) + 1));
    const Uncertain d_p = d_out_.dot(i, v_, j);
    const double difference = d_p.value - delta.value, ds = p * difference;
    const double ds_error = p_error * std::abs(difference) +
                            p * (d_p.error + delta.error + 4 * kFloatUnit * std::abs(difference));
    const auto narrowed = [this](double value, double error) {
      return error + rounding_ * (std::abs(value) + error) + smallest_;
    };
    return {{p, narrowed(p, p_error)}, {ds * scale_, narrowed(ds, ds_error) * scale_}};
  }

  const AttentionShape& shape_;
  const std::int64_t keys_;
  const double scale_, rounding_, smallest_;
  const float* const lse_;
  const Rows q_, d_out_, k_, v_;
  std::vector<Uncertain> delta_;  ///< of every query: its output times the output's gradient
};

/// Of a row of a gradient whose elements are sums of `terms` terms.
std::size_t wrong_in_row(const AttentionShape& shape, const std::uint16_t* row, const Sums& sums,
                         std::int64_t terms) {
  const double rounding = kernels::rounding_unit(shape.dtype);
  std::size_t wrong = 0;
  for (const Sum& sum : sums) {
    const double error = sum.error + (double(terms) + 32) * kFloatUnit * (sum.magnitude + sum.error);
    const Expected expected{sum.value, error + rounding * (std::abs(sum.value) + error) + 0x1p-24};
    if (!is_near(value_of(shape.dtype, *row++), expected)) ++wrong;
  }
  return wrong;
}

/// The numbers below `rows` of rows of which `before` others come first, every `step`-th of all.
std::vector<std::int64_t> sampled_rows(std::int64_t before, std::int64_t rows, std::int64_t step) {
  std::vector<std::int64_t> sampled;
  for (std::int64_t row = (step - before % step) % step; row < rows; row += step) sampled.push_back(row);
  return sampled;
}

}  // namespace

AttentionBackwardTensors random_attention_gradients(const AttentionShape& shape, std::uint64_t seed,
                                                    float scale) {
  AttentionBackwardTensors made{.forward = random_attention(shape, seed, scale),
                                .out = poisoned_output(shape),
                                .lse = poisoned_lse(shape)};
  made.d_out = random_tensor(std::ssize(made.out), shape.dtype, seed + 3);
  return made;
}

void attend_for_backward(const AttentionShape& shape, AttentionBackwardTensors& tensors) {
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      for (std::int64_t i = 0; i < shape.sequence; ++i) {
        const ExpectedRow row = attention_row(shape, tensors.forward, batch, i, head);
        auto* out = tensors.out.data() + ((batch * shape.sequence + i) * shape.heads + head) * shape.head_dim;
        for (const Expected& element : row.out) {
          const auto value = static_cast<float>(element.value);
          kernels::narrow(shape.dtype, &value, out++, 1);
        }
        tensors.lse[static_cast<std::size_t>((batch * shape.heads + head) * shape.sequence + i)] =
            static_cast<float>(row.lse.value);
      }
    }
  }
}

AttentionBackwardTensors random_attention_backward(const AttentionShape& shape, std::uint64_t seed,
                                                   float scale) {
  AttentionBackwardTensors made = random_attention_gradients(shape, seed, scale);
  attend_for_backward(shape, made);
  return made;
}

AttentionGradients poisoned_gradients(const AttentionShape& shape) {
  AttentionShape of_keys = shape;
  if (shape.keys > 0) of_keys.sequence = shape.keys;
  of_keys.heads = shape.kv_heads;
  return {poisoned_output(shape), poisoned_output(of_keys), poisoned_output(of_keys)};
}

AttentionBackwardArguments backward_arguments(const AttentionBackwardTensors& tensors,
                                              AttentionGradients& gradients) {
  return {.q = tensors.forward.q.data(),
          .k = tensors.forward.k.data(),
          .v = tensors.forward.v.data(),
          .out = tensors.out.data(),
          .d_out = tensors.d_out.data(),
          .lse = tensors.lse.data(),
          .d_q = gradients.d_q.data(),
          .d_k = gradients.d_k.data(),
          .d_v = gradients.d_v.data()};
}

namespace {

/// `parts`: the positions of the queries whose parts of the gradients of keys and values are summed by
/// themselves; of several parts each is rounded `roundings` times before they are added. `step`: as of
/// wrong_gradients().
std::size_t wrong_gradients_of_parts(const AttentionShape& shape, const AttentionBackwardTensors& tensors,
                                     const AttentionGradients& gradients, Weights weights,
                                     const std::vector<std::vector<std::int64_t>>& parts, int roundings,
                                     std::int64_t step) {
  const std::int64_t keys = shape.keys > 0 ? shape.keys : shape.sequence, queries = shape.sequence;
  const std::int64_t group = shape.heads / shape.kv_heads;
  const bool rounded = parts.size() > 1;
  const double rounding = rounded ? roundings * kernels::rounding_unit(shape.dtype) : 0;
  const double smallest = rounded ? roundings * 0x1p-24 : 0;
  const Sums none(static_cast<std::size_t>(shape.head_dim));
  std::size_t wrong = 0;
  const auto compare = [&](const std::vector<std::uint16_t>& tensor, std::int64_t row, const Sums& sums,
                           std::int64_t terms) {
    wrong += wrong_in_row(shape, tensor.data() + row * shape.head_dim, sums, terms);
  };
  for (std::int64_t of = 0; of < shape.batch * shape.kv_heads; ++of) {
    const std::int64_t batch = of / shape.kv_heads, kv_head = of % shape.kv_heads;
    std::vector<HeadPass> passes;
    passes.reserve(static_cast<std::size_t>(group));
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const HeadPass& pass = passes.emplace_back(shape, tensors, weights, batch, head);
      for (const std::int64_t i : sampled_rows((batch * shape.heads + head) * queries, queries, step))
        compare(gradients.d_q, (batch * queries + i) * shape.heads + head, pass.d_q(i), keys);
    }
    for (const std::int64_t j : sampled_rows(of * keys, keys, step)) {
      Sums d_k = none, d_v = none;
      for (const std::vector<std::int64_t>& part : parts) {
        Sums part_k = none, part_v = none;
        for (const HeadPass& pass : passes) pass.add_key(j, part, part_k, part_v);
        for (std::size_t c = 0; c < d_k.size(); ++c) {
          d_k[c].add_rounded(part_k[c], rounding, smallest);
          d_v[c].add_rounded(part_v[c], rounding, smallest);
        }
      }
      const std::int64_t row = (batch * keys + j) * shape.kv_heads + kv_head;
      compare(gradients.d_k, row, d_k, group * queries);
      compare(gradients.d_v, row, d_v, group * queries);
    }
  }
  return wrong;
}

/// The inverse of rows_of_rank(), of all ranks.
std::vector<std::uint16_t> whole_of_ranks(const AttentionShape& shape, std::int64_t heads,
                                          const std::vector<AttentionGradients>& by_rank,
                                          std::vector<std::uint16_t> AttentionGradients::*tensor) {
  const std::int64_t width = heads * shape.head_dim, world = std::ssize(by_rank);
  std::vector<std::uint16_t> whole(static_cast<std::size_t>(shape.batch * shape.sequence * width));
  for (std::int64_t rank = 0; rank < world; ++rank) {
    auto from = (by_rank[static_cast<std::size_t>(rank)].*tensor).begin();
    for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
      for (const std::int64_t position : attention_positions(shape, world, rank)) {
        std::copy(from, from + width, whole.begin() + (batch * shape.sequence + position) * width);
        from += width;
      }
    }
  }
  return whole;
}

}  // namespace

std::size_t wrong_gradients(const AttentionShape& shape, const AttentionBackwardTensors& tensors,
                            const AttentionGradients& gradients, Weights weights, std::int64_t step) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(shape.sequence));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  return wrong_gradients_of_parts(shape, tensors, gradients, weights, {all}, 1, step);
}

AttentionBackwardTensors backward_of_rank(const AttentionShape& shape, const AttentionBackwardTensors& whole,
                                          std::int64_t world, std::int64_t rank) {
  AttentionBackwardTensors of_rank{
      .forward = {rows_of_rank(shape, whole.forward.q, shape.heads, world, rank),
                  rows_of_rank(shape, whole.forward.k, shape.kv_heads, world, rank),
                  rows_of_rank(shape, whole.forward.v, shape.kv_heads, world, rank)},
      .out = rows_of_rank(shape, whole.out, shape.heads, world, rank),
      .d_out = rows_of_rank(shape, whole.d_out, shape.heads, world, rank),
      .lse = {}};
  for (std::int64_t head = 0; head < shape.batch * shape.heads; ++head)
    for (const std::int64_t position : attention_positions(shape, world, rank))
      of_rank.lse.push_back(whole.lse[static_cast<std::size_t>(head * shape.sequence + position)]);
  return of_rank;
}

AttentionGradients poisoned_gradients_of_rank(const AttentionShape& shape, std::int64_t world,
                                              std::int64_t rank) {
  AttentionShape of_rank = shape;
  of_rank.keys = 0;
  of_rank.sequence = std::ssize(attention_positions(shape, world, rank));
  return poisoned_gradients(of_rank);
}

std::size_t wrong_gradients_of_ranks(const AttentionShape& shape, const AttentionBackwardTensors& whole,
                                     const std::vector<AttentionGradients>& by_rank, Weights weights,
                                     int roundings) {
  const AttentionGradients gathered{whole_of_ranks(shape, shape.heads, by_rank, &AttentionGradients::d_q),
                                    whole_of_ranks(shape, shape.kv_heads, by_rank, &AttentionGradients::d_k),
                                    whole_of_ranks(shape, shape.kv_heads, by_rank, &AttentionGradients::d_v)};
  std::vector<std::vector<std::int64_t>> parts;
  for (std::int64_t rank = 0; rank < std::ssize(by_rank); ++rank)
    parts.push_back(attention_positions(shape, std::ssize(by_rank), rank));
  return wrong_gradients_of_parts(shape, whole, gathered, weights, parts, roundings, 1);
}

}  // namespace mkernel::test

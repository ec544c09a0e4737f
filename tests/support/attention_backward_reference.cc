#include "tests/support/attention_backward_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

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
    double sum = 0, magnitude = 0;
    for (std::int64_t i = 0; i < dim_; ++i) {
      const double product = at(row, i) * other.at(other_row, i);
      sum += product;
      magnitude += std::abs(product);
    }
    return {sum, (double(dim_) + 2) * kFloatUnit * magnitude};
  }

 private:
  std::int64_t dim_;
  std::vector<double> values_;
};

using Sums = std::vector<Sum>;

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
        out_(shape, tensors.out, shape.heads, shape.sequence, batch, head),
        d_out_(shape, tensors.d_out, shape.heads, shape.sequence, batch, head),
        k_(shape, tensors.forward.k, shape.kv_heads, keys_, batch, head * shape.kv_heads / shape.heads),
        v_(shape, tensors.forward.v, shape.kv_heads, keys_, batch, head * shape.kv_heads / shape.heads) {}

  /// Of these positions of queries. Adds to the sums of the head of keys and values; d_q is of this head
  /// alone.
  void run(const std::vector<std::int64_t>& positions, Sums& d_q, Sums& d_k, Sums& d_v) const {
    for (const std::int64_t i : positions) {
      const std::int64_t seen = shape_.causal ? i + 1 + keys_ - shape_.sequence : keys_;
      const Uncertain delta = out_.dot(i, d_out_, i);
      for (std::int64_t j = 0; j < seen; ++j) add_pair(i, j, delta, d_q, d_k, d_v);
    }
  }

 private:
  void add_pair(std::int64_t i, std::int64_t j, const Uncertain& delta, Sums& d_q, Sums& d_k,
                Sums& d_v) const {
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
    for (std::int64_t c = 0; c < shape_.head_dim; ++c) {
      at(d_v, j, c).add(p, narrowed(p, p_error), d_out_.at(i, c));
      at(d_k, j, c).add(ds * scale_, narrowed(ds, ds_error) * scale_, q_.at(i, c));
      at(d_q, i, c).add(ds * scale_, narrowed(ds, ds_error) * scale_, k_.at(j, c));
    }
  }
  Sum& at(Sums& sums, std::int64_t row, std::int64_t column) const {
    return sums[static_cast<std::size_t>(row * shape_.head_dim + column)];
  }

  const AttentionShape& shape_;
  const std::int64_t keys_;
  const double scale_, rounding_, smallest_;
  const float* const lse_;
  const Rows q_, out_, d_out_, k_, v_;
};

/// Of one head of a tensor [batch, positions, heads, head_dim] whose elements are sums of `terms` terms.
std::size_t wrong_rows(const AttentionShape& shape, const std::vector<std::uint16_t>& tensor,
                       std::int64_t heads, std::int64_t positions, std::int64_t batch, std::int64_t head,
                       const Sums& sums, std::int64_t terms) {
  const double rounding = kernels::rounding_unit(shape.dtype);
  std::size_t wrong = 0;
  for (std::int64_t row = 0; row < positions; ++row) {
    for (std::int64_t i = 0; i < shape.head_dim; ++i) {
      const Sum& sum = sums[static_cast<std::size_t>(row * shape.head_dim + i)];
      const double error = sum.error + (double(terms) + 32) * kFloatUnit * (sum.magnitude + sum.error);
      const Expected expected{sum.value, error + rounding * (std::abs(sum.value) + error) + 0x1p-24};
      const std::int64_t at = ((batch * positions + row) * heads + head) * shape.head_dim + i;
      if (!is_near(value_of(shape.dtype, tensor[static_cast<std::size_t>(at)]), expected)) ++wrong;
    }
  }
  return wrong;
}

}  // namespace

AttentionBackwardTensors random_attention_backward(const AttentionShape& shape, std::uint64_t seed,
                                                   float scale) {
  AttentionBackwardTensors made{.forward = random_attention(shape, seed, scale)};
  made.out = made.d_out = poisoned_output(shape);
  made.d_out = random_tensor(static_cast<std::int64_t>(made.out.size()), shape.dtype, seed + 3);
  made.lse = poisoned_lse(shape);
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      for (std::int64_t i = 0; i < shape.sequence; ++i) {
        const ExpectedRow row = attention_row(shape, made.forward, batch, i, head);
        auto* out = made.out.data() + ((batch * shape.sequence + i) * shape.heads + head) * shape.head_dim;
        for (const Expected& element : row.out) {
          const auto value = static_cast<float>(element.value);
          kernels::narrow(shape.dtype, &value, out++, 1);
        }
        made.lse[static_cast<std::size_t>((batch * shape.heads + head) * shape.sequence + i)] =
            static_cast<float>(row.lse.value);
      }
    }
  }
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
/// themselves; of several parts each is rounded before they are added.
std::size_t wrong_gradients_of_parts(const AttentionShape& shape, const AttentionBackwardTensors& tensors,
                                     const AttentionGradients& gradients, Weights weights,
                                     const std::vector<std::vector<std::int64_t>>& parts) {
  const std::int64_t keys = shape.keys > 0 ? shape.keys : shape.sequence;
  const std::int64_t group = shape.heads / shape.kv_heads;
  const bool rounded = weights == Weights::kRounded && parts.size() > 1;
  const double rounding = rounded ? kernels::rounding_unit(shape.dtype) : 0, smallest = rounded ? 0x1p-24 : 0;
  std::size_t wrong = 0;
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      Sums d_k(static_cast<std::size_t>(keys * shape.head_dim)), d_v = d_k;
      std::vector<Sums> d_q(static_cast<std::size_t>(group),
                            Sums(static_cast<std::size_t>(shape.sequence * shape.head_dim)));
      for (const std::vector<std::int64_t>& part : parts) {
        Sums part_k(d_k.size()), part_v(d_v.size());
        for (std::int64_t i = 0; i < group; ++i)
          HeadPass(shape, tensors, weights, batch, kv_head * group + i)
              .run(part, d_q[static_cast<std::size_t>(i)], part_k, part_v);
        for (std::size_t i = 0; i < d_k.size(); ++i) {
          d_k[i].add_rounded(part_k[i], rounding, smallest);
          d_v[i].add_rounded(part_v[i], rounding, smallest);
        }
      }
      for (std::int64_t i = 0; i < group; ++i)
        wrong += wrong_rows(shape, gradients.d_q, shape.heads, shape.sequence, batch, kv_head * group + i,
                            d_q[static_cast<std::size_t>(i)], keys);
      for (const auto& [tensor, sums] :
           {std::tuple<const std::vector<std::uint16_t>&, const Sums&>{gradients.d_k, d_k},
            {gradients.d_v, d_v}}) {
        wrong +=
            wrong_rows(shape, tensor, shape.kv_heads, keys, batch, kv_head, sums, group * shape.sequence);
      }
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
                            const AttentionGradients& gradients, Weights weights) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(shape.sequence));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  return wrong_gradients_of_parts(shape, tensors, gradients, weights, {all});
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
                                     const std::vector<AttentionGradients>& by_rank, Weights weights) {
  const AttentionGradients gathered{whole_of_ranks(shape, shape.heads, by_rank, &AttentionGradients::d_q),
                                    whole_of_ranks(shape, shape.kv_heads, by_rank, &AttentionGradients::d_k),
                                    whole_of_ranks(shape, shape.kv_heads, by_rank, &AttentionGradients::d_v)};
  std::vector<std::vector<std::int64_t>> parts;
  for (std::int64_t rank = 0; rank < std::ssize(by_rank); ++rank)
    parts.push_back(attention_positions(shape, std::ssize(by_rank), rank));
  return wrong_gradients_of_parts(shape, whole, gathered, weights, parts);
}

}  // namespace mkernel::test

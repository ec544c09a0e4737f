// The backward pass of ring attention, and of attention of each rank alone: the reference is the gradient of
// plain softmax(q k^T) v in fp64 over the whole sequence.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/cpu/memory/convert.h"
#include "tools/mkbench/attention_inputs.h"
#include "tools/mkbench/tensor.h"
#include "tools/mkbench/workload.h"

namespace mkernel::bench {
namespace {

using enum AttentionInputs::Tensor;

/// A gradient, [batch, heads, sequence, head_dim], and the sums of absolute values behind it.
struct Gradient {
  explicit Gradient(std::size_t elements) : value(elements), magnitude(elements) {}
  void add(std::size_t at, double term) {
    value[at] += term;
    magnitude[at] += std::abs(term);
  }
  std::vector<double> value, magnitude;
};

/// All three, of all ranks.
class Reference {
 public:
  Reference(const AttentionInputs& inputs, std::uint64_t iteration)
      : shape_(inputs.shape()),
        scale_(inputs.scale()),
        q_(inputs.in_sequence_order(iteration, kQ)),
        k_(inputs.in_sequence_order(iteration, kK)),
        v_(inputs.in_sequence_order(iteration, kV)),
        d_out_(inputs.in_sequence_order(iteration, kDOut)),
        d_q_(q_.size()),
        d_k_(k_.size()),
        d_v_(k_.size()) {
    for (std::int64_t head = 0; head < shape_.batch * shape_.heads; ++head)
      for (std::int64_t position = 0; position < shape_.sequence; ++position) add_query(head, position);
  }

  const Gradient& d_q() const { return d_q_; }
  const Gradient& d_k() const { return d_k_; }
  const Gradient& d_v() const { return d_v_; }

 private:
  double dot(const std::vector<float>& a, std::size_t row_a, const std::vector<float>& b,
             std::size_t row_b) const {
    const auto dim = static_cast<std::size_t>(shape_.head_dim);
    double sum = 0;
    for (std::size_t d = 0; d < dim; ++d) sum += static_cast<double>(a[row_a * dim + d]) * b[row_b * dim + d];
    return sum;
  }
  /// The output, rounded as the operation is given it, times its gradient.
  double delta(std::size_t query, std::size_t first_key, const std::vector<double>& weights) const {
    const auto dim = static_cast<std::size_t>(shape_.head_dim);
    double sum = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      double exact = 0;
      for (std::size_t key = 0; key < weights.size(); ++key)
        exact += weights[key] * v_[(first_key + key) * dim + d];
      auto out = static_cast<float>(exact);
      std::uint16_t rounded = 0;
      kernels::narrow(shape_.dtype, &out, &rounded, 1);
      kernels::widen(shape_.dtype, &rounded, &out, 1);
      sum += static_cast<double>(out) * d_out_[query * dim + d];
    }
    return sum;
  }
  void add_query(std::int64_t head, std::int64_t position) {
    const auto dim = static_cast<std::size_t>(shape_.head_dim);
    const auto query = static_cast<std::size_t>(head * shape_.sequence + position);
    const auto first_key =
        static_cast<std::size_t>(head / (shape_.heads / shape_.kv_heads) * shape_.sequence);
    std::vector<double> weights(static_cast<std::size_t>(shape_.causal ? position + 1 : shape_.sequence));
    double total = 0;  // scores stay far from the range of exp in fp64
    for (std::size_t key = 0; key < weights.size(); ++key)
      total += weights[key] = std::exp(dot(q_, query, k_, first_key + key) * scale_);
    for (double& weight : weights) weight /= total;
    const double delta_of_query = delta(query, first_key, weights);
    for (std::size_t key = 0; key < weights.size(); ++key) {
      const std::size_t row = first_key + key;
      const double d_score = weights[key] * (dot(d_out_, query, v_, row) - delta_of_query) * scale_;
      for (std::size_t d = 0; d < dim; ++d) {
        d_q_.add(query * dim + d, d_score * k_[row * dim + d]);
        d_k_.add(row * dim + d, d_score * q_[query * dim + d]);
        d_v_.add(row * dim + d, weights[key] * d_out_[query * dim + d]);
      }
    }
  }

  const AttentionShape& shape_;
  const double scale_;
  const std::vector<float> q_, k_, v_, d_out_;
  Gradient d_q_, d_k_, d_v_;
};

class BackwardWorkload final : public Workload {
 public:
  /// `forward`: what makes the outputs that the backward pass is given.
  BackwardWorkload(Group& group, OpKind kind, const AttentionShape& shape, Attention forward,
                   AttentionBackward op)
      : kind_(kind),
        world_(kind == OpKind::kRingAttentionBackward ? group.world_size() : 1),
        inputs_(kind, shape, world_, kind == OpKind::kRingAttentionBackward ? group.rank() : 0),
        forward_(std::move(forward)),
        op_(std::move(op)) {}

  nlohmann::json shape() const override { return json_of(kind_, inputs_.shape()); }
  std::string shape_text() const override { return text_of(inputs_.shape()); }

  void prepare(std::uint64_t iteration) override {
    iteration_ = iteration;
    q_ = inputs_.own(iteration, kQ);
    k_ = inputs_.own(iteration, kK);
    v_ = inputs_.own(iteration, kV);
    d_out_ = inputs_.own(iteration, kDOut);
    out_ = d_q_ = poisoned(q_.size());
    d_k_ = d_v_ = poisoned(k_.size());
    lse_.assign(q_.size() / static_cast<std::size_t>(inputs_.shape().head_dim), 0);
    auto pending = forward_.launch({q_.data(), k_.data(), v_.data(), out_.data(), lse_.data()});
    prepared_ = pending.ok() ? pending->wait() : pending.status();
  }
  Result<Pending> launch(const ExecutorOptions& options) override {
    if (!prepared_.ok()) return prepared_;
    return op_.launch({q_.data(), k_.data(), v_.data(), out_.data(), d_out_.data(), lse_.data(), d_q_.data(),
                       d_k_.data(), d_v_.data()},
                      options);
  }
  std::uint64_t wire_bytes() const override { return op_.wire_bytes(); }

  Verdict verify() const override {
    const Reference reference(inputs_, iteration_);
    std::vector<float> found, wanted, bound;
    const auto collect = [&](const std::vector<std::uint16_t>& gradient, const Gradient& of,
                             std::int64_t heads, int roundings) {
      const std::vector<float> values = to_float(inputs_.shape().dtype, gradient);
      found.insert(found.end(), values.begin(), values.end());
      append_own(of, heads, roundings, wanted, bound);
    };
    // Of what each rank gives of the gradients of keys and values, and of the sums of nodes.
    const int roundings = world_ > 1 ? 2 : 0;
    collect(d_q_, reference.d_q(), inputs_.heads(kQ), 0);
    collect(d_k_, reference.d_k(), inputs_.heads(kK), roundings);
    collect(d_v_, reference.d_v(), inputs_.heads(kK), roundings);
    return compare(found, wanted, bound);
  }

 private:
  /// The rows of this rank, as it holds them. `roundings`: of every term on its way.
  void append_own(const Gradient& of, std::int64_t heads, int roundings, std::vector<float>& wanted,
                  std::vector<float>& bound) const {
    const AttentionShape& shape = inputs_.shape();
    const double unit = 1.01 * kernels::rounding_unit(shape.dtype);
    for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
      for (const std::int64_t position : inputs_.positions()) {
        for (std::int64_t head = 0; head < heads; ++head) {
          const std::int64_t first = ((batch * heads + head) * shape.sequence + position) * shape.head_dim;
          for (std::int64_t at = first; at < first + shape.head_dim; ++at) {
            const auto i = static_cast<std::size_t>(at);
            wanted.push_back(static_cast<float>(of.value[i]));
            // One rounding of the result; fp32 arithmetic before it, whose noise may also tip the rounding of
            // an output the other way.
            bound.push_back(static_cast<float>(unit * std::abs(of.value[i]) +
                                               (roundings * unit + 3e-4) * of.magnitude[i] + 2e-5));
          }
        }
      }
    }
  }

  OpKind kind_;
  std::uint32_t world_;  ///< ranks that give of each other's gradients
  AttentionInputs inputs_;
  Attention forward_;
  AttentionBackward op_;
  Status prepared_;
  std::uint64_t iteration_ = 0;
  std::vector<std::uint16_t> q_, k_, v_, out_, d_out_, d_q_, d_k_, d_v_;
  std::vector<float> lse_;
};

}  // namespace

Result<std::unique_ptr<Workload>> make_backward_workload(Group& group, OpKind kind,
                                                         const AttentionShape& shape) {
  const bool ring = kind == OpKind::kRingAttentionBackward;
  auto forward = ring ? group.ring_attention(shape) : group.attention(shape);
  if (!forward.ok()) return forward.status();
  auto op = ring ? group.ring_attention_backward(shape) : group.attention_backward(shape);
  if (!op.ok()) return op.status();
  return std::unique_ptr<Workload>(
      std::make_unique<BackwardWorkload>(group, kind, shape, std::move(*forward), std::move(*op)));
}

}  // namespace mkernel::bench

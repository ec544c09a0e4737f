// Ring attention, and attention of each rank alone: the reference is plain softmax(q k^T) v in fp64 over the
// whole sequence.
#include <cmath>
#include <string>
#include <utility>

#include "kernels/cpu/memory/convert.h"
#include "tools/mkbench/attention_inputs.h"
#include "tools/mkbench/tensor.h"
#include "tools/mkbench/workload.h"

namespace mkernel::bench {
namespace {

class AttentionWorkload final : public Workload {
  using enum AttentionInputs::Tensor;

 public:
  /// Attention of each rank alone is that of a world of one.
  AttentionWorkload(Group& group, OpKind kind, const AttentionShape& shape, Attention op)
      : kind_(kind),
        shape_(shape),
        inputs_(kind, shape, kind == OpKind::kRingAttention ? group.world_size() : 1,
                kind == OpKind::kRingAttention ? group.rank() : 0),
        op_(std::move(op)) {}

  nlohmann::json shape() const override { return json_of(kind_, shape_); }
  std::string shape_text() const override { return text_of(shape_); }

  void prepare(std::uint64_t iteration) override {
    iteration_ = iteration;
    q_ = inputs_.own(iteration, kQ);
    k_ = inputs_.own(iteration, kK);
    v_ = inputs_.own(iteration, kV);
    out_ = poisoned(q_.size());
  }
  Result<Pending> launch(const ExecutorOptions& options) override {
    return op_.launch({.q = q_.data(), .k = k_.data(), .v = v_.data(), .out = out_.data()}, options);
  }
  std::uint64_t wire_bytes() const override { return op_.wire_bytes(); }

  Verdict verify() const override {
    const std::vector<float> out = to_float(shape_.dtype, out_), q = to_float(shape_.dtype, q_);
    const std::vector<std::int64_t> mine = inputs_.positions();
    const std::vector<float> k = inputs_.in_sequence_order(iteration_, kK),
                             v = inputs_.in_sequence_order(iteration_, kV);
    std::vector<float> reference(out.size()), bound(out.size());
    const std::int64_t dim = shape_.head_dim, heads = shape_.heads, group_size = heads / shape_.kv_heads;
    for (std::int64_t batch = 0; batch < shape_.batch; ++batch) {
      for (std::size_t row = 0; row < mine.size(); ++row) {
        for (std::int64_t head = 0; head < heads; ++head) {
          const std::size_t at = ((batch * mine.size() + row) * heads + head) * dim;
          attend(q.data() + at, k, v, batch, head / group_size, mine[row], reference.data() + at);
        }
      }
    }
    // Outputs are averages of values in [-1, 1): one rounding of the result, fp32 arithmetic before it.
    for (std::size_t i = 0; i < bound.size(); ++i) {
      bound[i] =
          static_cast<float>(1.01 * kernels::rounding_unit(shape_.dtype) * std::abs(reference[i]) + 2e-5);
    }
    return compare(out, reference, bound);
  }

 private:
  void attend(const float* q, const std::vector<float>& k, const std::vector<float>& v, std::int64_t batch,
              std::int64_t kv_head, std::int64_t position, float* out) const {
    const std::int64_t dim = shape_.head_dim, length = shape_.causal ? position + 1 : shape_.sequence;
    const double scale = inputs_.scale();
    const float* keys = k.data() + (batch * shape_.kv_heads + kv_head) * shape_.sequence * dim;
    const float* values = v.data() + (batch * shape_.kv_heads + kv_head) * shape_.sequence * dim;
    // |score| <= dim * scale stays far from the range of exp in fp64: no running maximum is needed here.
    std::vector<double> sum(static_cast<std::size_t>(dim), 0);
    double total = 0;
    for (std::int64_t p = 0; p < length; ++p) {
      double score = 0;
      for (std::int64_t d = 0; d < dim; ++d) score += static_cast<double>(q[d]) * keys[p * dim + d];
      const double weight = std::exp(score * scale);
      total += weight;
      for (std::int64_t d = 0; d < dim; ++d) sum[d] += weight * values[p * dim + d];
    }
    for (std::int64_t d = 0; d < dim; ++d) out[d] = static_cast<float>(sum[d] / total);
  }

  OpKind kind_;
  AttentionShape shape_;
  AttentionInputs inputs_;
  Attention op_;
  std::uint64_t iteration_ = 0;
  std::vector<std::uint16_t> q_, k_, v_, out_;
};

}  // namespace

Result<std::unique_ptr<Workload>> make_attention_workload(Group& group, OpKind kind,
                                                          const AttentionShape& shape) {
  auto op = kind == OpKind::kRingAttention ? group.ring_attention(shape) : group.attention(shape);
  if (!op.ok()) return op.status();
  return std::unique_ptr<Workload>(std::make_unique<AttentionWorkload>(group, kind, shape, std::move(*op)));
}

nlohmann::json json_of(OpKind kind, const AttentionShape& shape) {
  return {{"op", to_string(kind)},  {"m", shape.sequence},
          {"n", shape.heads},       {"k", shape.head_dim},
          {"batch", shape.batch},   {"kv_heads", shape.kv_heads},
          {"causal", shape.causal}, {"dtype", to_string(shape.dtype)}};
}

std::string text_of(const AttentionShape& shape) {
  return "B" + std::to_string(shape.batch) + " S" + std::to_string(shape.sequence) + " H" +
         std::to_string(shape.heads) + "/" + std::to_string(shape.kv_heads) + " D" +
         std::to_string(shape.head_dim) + (shape.causal ? " causal" : " full");
}

}  // namespace mkernel::bench

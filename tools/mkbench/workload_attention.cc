// Ring attention, and attention of each rank alone: the reference is plain softmax(q k^T) v in fp64 over the
// whole sequence.
#include <cmath>
#include <string>
#include <utility>

#include "kernels/cpu/memory/convert.h"
#include "tools/mkbench/tensor.h"
#include "tools/mkbench/workload.h"

namespace mkernel::bench {
namespace {

class AttentionWorkload final : public Workload {
  enum Operand : std::uint64_t { kQ = 1, kK = 2, kV = 3 };

 public:
  /// Attention of each rank alone is that of a world of one.
  AttentionWorkload(Group& group, OpKind kind, const AttentionShape& shape, Attention op)
      : kind_(kind),
        shape_(shape),
        world_(kind == OpKind::kRingAttention ? group.world_size() : 1),
        rank_(kind == OpKind::kRingAttention ? group.rank() : 0),
        op_(std::move(op)) {}

  nlohmann::json shape() const override { return json_of(kind_, shape_); }
  std::string shape_text() const override { return text_of(shape_); }

  void prepare(std::uint64_t iteration) override {
    iteration_ = iteration;
    q_ = operand(rank_, kQ);
    k_ = operand(rank_, kK);
    v_ = operand(rank_, kV);
    out_ = poisoned(q_.size());
  }
  Result<Pending> launch(const ExecutorOptions& options) override {
    return op_.launch({.q = q_.data(), .k = k_.data(), .v = v_.data(), .out = out_.data()}, options);
  }
  std::uint64_t wire_bytes() const override { return op_.wire_bytes(); }

  Verdict verify() const override {
    const std::vector<float> out = to_float(shape_.dtype, out_), q = to_float(shape_.dtype, q_);
    const std::vector<std::int64_t> mine = positions(rank_);
    const std::vector<float> k = in_sequence_order(kK), v = in_sequence_order(kV);
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
  std::vector<std::int64_t> positions(std::uint32_t rank) const {
    std::vector<std::int64_t> list;
    const auto append = [&](Range range) {
      for (std::int64_t p = range.begin; p < range.end; ++p) list.push_back(p);
    };
    if (shape_.causal) {
      append(block_range(shape_.sequence, 2 * world_, rank));
      append(block_range(shape_.sequence, 2 * world_, 2 * world_ - 1 - rank));
    } else {
      append(block_range(shape_.sequence, world_, rank));
    }
    return list;
  }
  std::vector<std::uint16_t> operand(std::uint32_t rank, Operand which) const {
    const std::int64_t heads = which == kQ ? shape_.heads : shape_.kv_heads;
    const auto rows = static_cast<std::int64_t>(positions(rank).size());
    return random_tensor(shape_.dtype, seed_of(static_cast<std::uint64_t>(kind_), iteration_, rank, which),
                         static_cast<std::size_t>(shape_.batch * rows * heads * shape_.head_dim));
  }
  /// k or v of all ranks as [batch, kv_heads, sequence, head_dim].
  std::vector<float> in_sequence_order(Operand which) const {
    const std::int64_t dim = shape_.head_dim, heads = shape_.kv_heads;
    std::vector<float> all(static_cast<std::size_t>(shape_.batch * shape_.sequence * heads * dim));
    for (std::uint32_t rank = 0; rank < world_; ++rank) {
      const std::vector<float> part = to_float(shape_.dtype, operand(rank, which));
      const std::vector<std::int64_t> rows = positions(rank);
      for (std::int64_t batch = 0; batch < shape_.batch; ++batch) {
        for (std::size_t row = 0; row < rows.size(); ++row) {
          for (std::int64_t head = 0; head < heads; ++head) {
            const float* from = part.data() + ((batch * rows.size() + row) * heads + head) * dim;
            std::copy(from, from + dim,
                      all.data() + ((batch * heads + head) * shape_.sequence + rows[row]) * dim);
          }
        }
      }
    }
    return all;
  }
  void attend(const float* q, const std::vector<float>& k, const std::vector<float>& v, std::int64_t batch,
              std::int64_t kv_head, std::int64_t position, float* out) const {
    const std::int64_t dim = shape_.head_dim, length = shape_.causal ? position + 1 : shape_.sequence;
    const double scale = shape_.scale != 0 ? shape_.scale : 1 / std::sqrt(static_cast<double>(dim));
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
  std::uint32_t world_, rank_;
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

// Mixture of experts layer: the reference runs every expert densely in fp32 on this rank's tokens that chose
// it.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/cpu/memory/convert.h"
#include "tools/mkbench/moe_inputs.h"
#include "tools/mkbench/tensor.h"
#include "tools/mkbench/workload.h"

namespace mkernel::bench {
namespace {

class MoeWorkload final : public Workload {
  enum Operand : std::uint64_t { kX = 1, kW1 = 2, kW2 = 3, kRouting = 4, kSharedW1 = 5, kSharedW2 = 6 };

 public:
  MoeWorkload(Group& group, const MoeShape& shape, Moe op)
      : shape_(shape), world_(group.world_size()), rank_(group.rank()), op_(std::move(op)) {}

  nlohmann::json shape() const override { return json_of(shape_, world_); }
  std::string shape_text() const override { return text_of(shape_, world_); }

  void prepare(std::uint64_t iteration) override {
    iteration_ = iteration;
    x_ = tensor(kX, rank_, shape_.max_tokens * shape_.hidden, 1);
    const Range mine = block_range(shape_.experts, world_, rank_);
    w1_.clear();
    w2_.clear();
    for (std::int64_t expert = mine.begin; expert < mine.end; ++expert) {
      append(w1_, expert_matrix(kW1, expert));
      if (shape_.intermediate > 0) append(w2_, expert_matrix(kW2, expert));
    }
    if (shape_.shared_intermediate > 0) {
      shared_w1_ = expert_matrix(kSharedW1, 0);
      shared_w2_ = expert_matrix(kSharedW2, 0);
    }
    routing_ = random_routing(shape_, seed(kRouting, rank_));
    y_ = poisoned(static_cast<std::size_t>(shape_.max_tokens * shape_.n));
  }
  Result<Pending> launch(const ExecutorOptions& options) override {
    return op_.launch({.tokens = shape_.max_tokens,
                       .x = x_.data(),
                       .topk = routing_.topk.data(),
                       .weights = routing_.weights.data(),
                       .w1 = w1_.data(),
                       .w2 = shape_.intermediate > 0 ? w2_.data() : nullptr,
                       .y = y_.data(),
                       .shared_w1 = shared_w1_.empty() ? nullptr : shared_w1_.data(),
                       .shared_w2 = shared_w2_.empty() ? nullptr : shared_w2_.data()},
                      options);
  }
  std::uint64_t wire_bytes() const override { return op_.wire_bytes(); }

  Verdict verify() const override {
    const std::vector<float> out = to_float(shape_.dtype, y_), x = to_float(shape_.dtype, x_);
    std::vector<float> reference(out.size(), 0), magnitude(out.size(), 0);
    for (std::int64_t expert = 0; expert < shape_.experts; ++expert) {
      std::vector<Entry> chosen;
      for (std::size_t i = 0; i < routing_.topk.size(); ++i) {
        if (routing_.topk[i] == expert)
          chosen.push_back({static_cast<std::int64_t>(i) / shape_.topk, routing_.weights[i]});
      }
      add_expert(chosen, expert_matrix(kW1, expert), expert_matrix(kW2, expert), shape_.intermediate, x,
                 reference, magnitude);
    }
    if (shape_.shared_intermediate > 0) {
      std::vector<Entry> all;
      for (std::int64_t token = 0; token < shape_.max_tokens; ++token) all.push_back({token, 1});
      add_expert(all, shared_w1_, shared_w2_, shape_.shared_intermediate, x, reference, magnitude);
    }
    const MoeBound limit = MoeBound::of(shape_);
    std::vector<float> bound(out.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      bound[i] =
          static_cast<float>(limit.relative * (std::abs(reference[i]) + 2 * magnitude[i]) + limit.slack);
    }
    return compare(out, reference, bound);
  }

 private:
  /// A token that goes through an expert.
  struct Entry {
    std::int64_t token;
    float weight;
  };
  std::uint64_t seed(Operand which, std::uint64_t index) const {
    return seed_of(static_cast<std::uint64_t>(OpKind::kMoeDispatchGemm), iteration_, index, which);
  }
  std::vector<std::uint16_t> tensor(Operand which, std::uint64_t index, std::int64_t count,
                                    float scale) const {
    return random_tensor(shape_.dtype, seed(which, index), static_cast<std::size_t>(count), scale);
  }
  std::vector<std::uint16_t> expert_matrix(Operand which, std::int64_t expert) const {
    const bool shared = which == kSharedW1 || which == kSharedW2;
    const std::int64_t inner = shared ? shape_.shared_intermediate : shape_.intermediate;
    const bool first = which == kW1 || which == kSharedW1;
    const std::int64_t rows = first ? shape_.hidden : inner;
    const std::int64_t columns = first && inner > 0 ? 2 * inner : shape_.n;
    return tensor(which, static_cast<std::uint64_t>(expert), rows * columns, weight_scale(rows));
  }
  static void append(std::vector<std::uint16_t>& all, const std::vector<std::uint16_t>& more) {
    all.insert(all.end(), more.begin(), more.end());
  }
  /// `inner`: of the expert; 0 = there is only one product.
  void add_expert(const std::vector<Entry>& chosen, const std::vector<std::uint16_t>& first_weights,
                  const std::vector<std::uint16_t>& second_weights, std::int64_t inner,
                  const std::vector<float>& x, std::vector<float>& reference,
                  std::vector<float>& magnitude) const {
    if (chosen.empty()) return;
    const auto rows = static_cast<std::int64_t>(chosen.size());
    const std::int64_t hidden = shape_.hidden, n = shape_.n, wide = inner > 0 ? 2 * inner : n;
    std::vector<float> input(rows * hidden), first(rows * wide), result(rows * n);
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* from = x.data() + chosen[r].token * hidden;
      std::copy(from, from + hidden, input.data() + r * hidden);
    }
    const std::vector<float> w1 = to_float(shape_.dtype, first_weights);
    reference_gemm(rows, wide, hidden, input.data(), w1.data(), Layout::kRowMajor, first.data());
    if (inner > 0) {
      std::vector<float> activation(rows * inner);
      for (std::int64_t i = 0; i < rows * inner; ++i) {
        const double gate = first[i / inner * wide + i % inner],
                     up = first[i / inner * wide + inner + i % inner];
        activation[i] = static_cast<float>(gate / (1 + std::exp(-gate)) * up);
      }
      std::vector<std::uint16_t> rounded(activation.size());
      kernels::narrow(shape_.dtype, activation.data(), rounded.data(), rounded.size());
      activation = to_float(shape_.dtype, rounded);
      const std::vector<float> w2 = to_float(shape_.dtype, second_weights);
      reference_gemm(rows, n, inner, activation.data(), w2.data(), Layout::kRowMajor, result.data());
    } else {
      result = std::move(first);
    }
    for (std::int64_t i = 0; i < rows * n; ++i) {
      const Entry& entry = chosen[i / n];
      const float value = entry.weight * result[i];
      reference[entry.token * n + i % n] += value;
      magnitude[entry.token * n + i % n] += std::abs(value);
    }
  }

  MoeShape shape_;
  std::uint32_t world_, rank_;
  Moe op_;
  std::uint64_t iteration_ = 0;
  std::vector<std::uint16_t> x_, w1_, w2_, shared_w1_, shared_w2_, y_;
  MoeRouting routing_;
};

}  // namespace

Result<std::unique_ptr<Workload>> make_moe_workload(Group& group, const MoeShape& shape) {
  auto op = group.moe(shape);
  if (!op.ok()) return op.status();
  return std::unique_ptr<Workload>(std::make_unique<MoeWorkload>(group, shape, std::move(op).value()));
}

}  // namespace mkernel::bench

#include <algorithm>
#include <optional>

#include "tools/mkrun/job.h"

namespace mkernel::mkrun {
namespace {

class MoeJob : public Job {
 public:
  Status load(const Options& options) override {
    auto x = load_values("--a", options.a, {{"tokens"}, {"hidden"}}, options.dtype);
    if (!x.ok()) return x.status();
    const std::int64_t tokens = x->shape[0];
    auto indices = load_indices("--topk-indices", options.topk_indices, {{"tokens", tokens}, {"topk"}});
    if (!indices.ok()) return indices.status();
    auto weights = load_floats("--topk-weights", options.topk_weights,
                               {{"tokens", tokens}, {"topk", indices->shape[1]}});
    if (!weights.ok()) return weights.status();
    shape_.hidden = x->shape[1];
    shape_.topk = indices->shape[1];
    shape_.dtype = options.dtype;
    x_ = std::move(*x);
    indices_ = std::move(*indices);
    weights_ = std::move(*weights);
    MK_RETURN_IF_ERROR(load_experts(options));
    return load_shared(options);
  }

  Status plan(Group& group, const Options& options) override {
    const auto world = static_cast<std::int64_t>(group.world_size());
    const auto parts = gather(group, w1_.shape[0]);
    if (!parts.ok()) return parts.status();
    const auto experts = total_of(parts.value(), "experts", options.experts, [&](auto rank, auto total) {
      return block_range(total, world, rank).size();
    });
    if (!experts.ok()) return experts.status().with_context("experts of --w1");
    const auto tokens = gather(group, x_.shape[0]);
    if (!tokens.ok()) return tokens.status();
    const std::int64_t most = *std::max_element(tokens->begin(), tokens->end());
    shape_.experts = experts.value();
    shape_.max_tokens = options.max_tokens > 0 ? options.max_tokens : most;
    if (most > shape_.max_tokens) {
      return {StatusCode::kInvalidArgument, "a rank has " + std::to_string(most) +
                                                " tokens, --max-tokens is " +
                                                std::to_string(shape_.max_tokens)};
    }
    auto made = group.moe(shape_, options.executor);
    if (!made.ok()) return made.status();
    operation_.emplace(std::move(*made));
    make_out({x_.shape[0], shape_.n});
    return place_operands(options);
  }

  Result<Pending> launch(const ExecutorOptions& options) override {
    return operation_->launch(arguments_, options);
  }
  const Planned& operation() const override { return *operation_; }

 private:
  /// With --w2 the experts are gated: w1 is [experts, hidden, 2 * intermediate].
  Status load_experts(const Options& options) {
    const bool gated = !options.w2.empty();
    auto w1 =
        load_values("--w1", options.w1,
                    {{"experts of this rank"}, {"hidden", shape_.hidden}, {gated ? "2 * intermediate" : "n"}},
                    options.dtype);
    if (!w1.ok()) return w1.status();
    w1_ = std::move(*w1);
    shape_.n = w1_.shape[2];
    if (!gated) return {};
    MK_RETURN_IF_ERROR(halve(w1_, "wanted with --w2 is 2 * intermediate", shape_.intermediate));
    auto w2 =
        load_values("--w2", options.w2,
                    {{"experts of this rank", w1_.shape[0]}, {"intermediate", shape_.intermediate}, {"n"}},
                    options.dtype);
    if (!w2.ok()) return w2.status();
    w2_ = std::move(*w2);
    shape_.n = w2_.shape[2];
    return {};
  }

  /// `half`: of the columns of `w1`, which are gates and ups.
  static Status halve(const Operand& w1, const std::string& wanted, std::int64_t& half) {
    const std::int64_t columns = w1.shape.back();
    if (columns % 2 != 0 || columns == 0) {
      return {StatusCode::kInvalidArgument,
              w1.what + " has a last extent of " + std::to_string(columns) + ", " + wanted};
    }
    half = columns / 2;
    return {};
  }

  Status load_shared(const Options& options) {
    if (options.shared_w1.empty() && options.shared_w2.empty()) return {};
    if (shape_.intermediate == 0)
      return {StatusCode::kInvalidArgument, "--shared-w1 is given without --w2: a shared expert is gated"};
    auto w1 = load_values("--shared-w1", options.shared_w1,
                          {{"hidden", shape_.hidden}, {"2 * shared_intermediate"}}, options.dtype);
    if (!w1.ok()) return w1.status();
    MK_RETURN_IF_ERROR(halve(*w1, "wanted is 2 * shared_intermediate", shape_.shared_intermediate));
    auto w2 =
        load_values("--shared-w2", options.shared_w2,
                    {{"shared_intermediate", shape_.shared_intermediate}, {"n", shape_.n}}, options.dtype);
    if (!w2.ok()) return w2.status();
    shared_w1_ = std::move(*w1);
    shared_w2_ = std::move(*w2);
    return {};
  }

  /// Those that there are.
  Status place_operands(const Options& options) {
    MoeArguments& a = arguments_;
    a.tokens = x_.shape[0];
    MK_RETURN_IF_ERROR(place(options, x_.values, a.x));
    MK_RETURN_IF_ERROR(place(options, indices_.indices, a.topk));
    MK_RETURN_IF_ERROR(place(options, weights_.floats, a.weights));
    MK_RETURN_IF_ERROR(place(options, w1_.values, a.w1));
    MK_RETURN_IF_ERROR(place(options, w2_.values, a.w2));
    MK_RETURN_IF_ERROR(place(options, shared_w1_.values, a.shared_w1));
    MK_RETURN_IF_ERROR(place(options, shared_w2_.values, a.shared_w2));
    return place_result(options, out_, a.y);
  }

  MoeShape shape_;
  MoeArguments arguments_;
  Operand x_, indices_, weights_, w1_, w2_, shared_w1_, shared_w2_;
  std::optional<Moe> operation_;
};

}  // namespace

std::unique_ptr<Job> make_moe_job() {
  return std::make_unique<MoeJob>();
}

}  // namespace mkernel::mkrun

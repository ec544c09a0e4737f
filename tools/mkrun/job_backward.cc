#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/mkrun/attention_operands.h"
#include "tools/mkrun/job.h"

namespace mkernel::mkrun {
namespace {

/// The backward pass of ring attention, or of attention of every rank alone.
class BackwardJob : public Job {
 public:
  Status load(const Options& options) override {
    alone_ = options.op == "attention_backward";
    auto q = load_attention_tensor("--q", options.q, -1, -1, -1, -1, options);
    if (!q.ok()) return q.status();
    q_ = std::move(*q);
    const std::int64_t keys = alone_ ? -1 : positions();
    MK_RETURN_IF_ERROR(load_like(q_, "--k", options.k, keys, -1, options, k_));
    MK_RETURN_IF_ERROR(load_like(q_, "--v", options.v, positions_of(k_), heads_of(k_), options, v_));
    MK_RETURN_IF_ERROR(load_like(q_, "--o", options.o, positions(), heads_of(q_), options, o_));
    MK_RETURN_IF_ERROR(load_like(q_, "--d-o", options.d_o, positions(), heads_of(q_), options, d_o_));
    const std::int64_t batch = is_packed(options) ? 1 : q_.shape[0];
    std::vector<Extent> of_lse{{"heads", heads_of(q_)}, {"positions", positions()}};
    if (!is_packed(options)) of_lse.insert(of_lse.begin(), {"batch", batch});
    auto lse = load_floats("--lse", options.lse, of_lse);
    if (!lse.ok()) return lse.status();
    lse_ = std::move(*lse);
    auto lengths = load_lengths(options);
    if (!lengths.ok()) return lengths.status();
    lengths_ = std::move(*lengths);
    shape_ = {.batch = batch,
              .sequence = positions(),
              .heads = heads_of(q_),
              .kv_heads = heads_of(k_),
              .head_dim = q_.shape.back(),
              .causal = options.causal,
              .scale = options.scale,
              .dtype = options.dtype,
              .keys = alone_ ? positions_of(k_) : 0,
              .max_sequences = lengths_.sequences(),
              .window_left = options.window_left,
              .window_right = options.window_right};
    return {};
  }

  Status plan(Group& group, const Options& options) override {
    if (!alone_) {
      auto sequence = sequence_of(group, options, positions());
      if (!sequence.ok()) return sequence.status();
      shape_.sequence = *sequence;
    }
    auto made = alone_ ? group.attention_backward(shape_, options.executor)
                       : group.ring_attention_backward(shape_, options.executor);
    if (!made.ok()) return made.status();
    operation_.emplace(std::move(*made));
    make_out(q_.shape);
    d_k_.resize(k_.values.size());
    d_v_.resize(k_.values.size());
    MK_RETURN_IF_ERROR(place(options, q_.values, arguments_.q));
    MK_RETURN_IF_ERROR(place(options, k_.values, arguments_.k));
    MK_RETURN_IF_ERROR(place(options, v_.values, arguments_.v));
    MK_RETURN_IF_ERROR(place(options, o_.values, arguments_.out));
    MK_RETURN_IF_ERROR(place(options, d_o_.values, arguments_.d_out));
    MK_RETURN_IF_ERROR(place(options, lse_.floats, arguments_.lse));
    MK_RETURN_IF_ERROR(place(options, lengths_.q.indices, arguments_.cu_seqlens_q));
    MK_RETURN_IF_ERROR(place(options, lengths_.k.indices, arguments_.cu_seqlens_k));
    MK_RETURN_IF_ERROR(place_result(options, d_k_, arguments_.d_k));
    MK_RETURN_IF_ERROR(place_result(options, d_v_, arguments_.d_v));
    return place_result(options, out_, arguments_.d_q);
  }

  Result<Pending> launch(const ExecutorOptions& options) override {
    return operation_->launch(arguments_, options);
  }
  const Planned& operation() const override { return *operation_; }

  Status save(const Options& options, Outputs& outputs) override {
    MK_RETURN_IF_ERROR(Job::save(options, outputs));
    for (const auto& [flag, path, gradient] :
         {std::tuple{"--d-k", &options.d_k, &d_k_}, {"--d-v", &options.d_v, &d_v_}}) {
      if (!path->empty()) MK_RETURN_IF_ERROR(outputs.write(flag, k_.shape, *gradient, options.dtype));
    }
    return {};
  }

 private:
  std::int64_t positions() const { return positions_of(q_); }
  /// With the batch and head_dim of `other`. -1: any.
  static Status load_like(const Operand& other, const std::string& flag, const std::string& path,
                          std::int64_t positions, std::int64_t heads, const Options& options, Operand& to) {
    auto loaded =
        load_attention_tensor(flag, path, other.shape[0], positions, heads, other.shape.back(), options);
    if (loaded.ok()) to = std::move(*loaded);
    return loaded.status();
  }

  bool alone_ = false;
  AttentionShape shape_;
  Operand q_, k_, v_, o_, d_o_, lse_;
  PackedLengths lengths_;
  std::vector<std::uint16_t> d_k_, d_v_;
  AttentionBackwardArguments arguments_;
  std::optional<AttentionBackward> operation_;
};

}  // namespace

std::unique_ptr<Job> make_backward_job() {
  return std::make_unique<BackwardJob>();
}

}  // namespace mkernel::mkrun

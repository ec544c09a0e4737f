#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/mkrun/attention_operands.h"
#include "tools/mkrun/job.h"
#include "tools/mkrun/npy.h"

namespace mkernel::mkrun {
namespace {

/// Ring attention, or attention of every rank alone.
class AttentionJob : public Job {
 public:
  Status load(const Options& options) override {
    alone_ = options.op == "attention";
    packed_ = is_packed(options);
    auto q = load_attention_tensor("--q", options.q, -1, -1, -1, -1, options);
    if (!q.ok()) return q.status();
    q_ = std::move(*q);
    const std::int64_t batch = packed_ ? 1 : q_.shape[0], head_dim = q_.shape.back();
    auto k =
        load_attention_tensor("--k", options.k, batch, alone_ ? -1 : q_positions(), -1, head_dim, options);
    if (!k.ok()) return k.status();
    k_ = std::move(*k);
    const std::int64_t keys = positions_of(k_), kv_heads = heads_of(k_);
    auto v = load_attention_tensor("--v", options.v, batch, keys, kv_heads, head_dim, options);
    if (!v.ok()) return v.status();
    v_ = std::move(*v);
    auto lengths = load_lengths(options);
    if (!lengths.ok()) return lengths.status();
    lengths_ = std::move(*lengths);
    shape_ = {.batch = batch,
              .sequence = q_positions(),
              .heads = heads_of(q_),
              .kv_heads = kv_heads,
              .head_dim = head_dim,
              .causal = options.causal,
              .scale = options.scale,
              .dtype = options.dtype,
              .keys = alone_ ? keys : 0,
              .max_sequences = lengths_.sequences(),
              .window_left = options.window_left,
              .window_right = options.window_right};
    return {};
  }

  Status plan(Group& group, const Options& options) override {
    if (!alone_) {
      auto sequence = packed_ ? rows_of_all(group, options) : sequence_of(group, options, q_positions());
      if (!sequence.ok()) return sequence.status();
      shape_.sequence = *sequence;
    }
    auto made =
        alone_ ? group.attention(shape_, options.executor) : group.ring_attention(shape_, options.executor);
    if (!made.ok()) return made.status();
    operation_.emplace(std::move(*made));
    make_out(q_.shape);
    if (!options.lse.empty())
      lse_.resize(static_cast<std::size_t>(shape_.batch * shape_.heads * q_positions()));
    MK_RETURN_IF_ERROR(place(options, q_.values, arguments_.q));
    MK_RETURN_IF_ERROR(place(options, k_.values, arguments_.k));
    MK_RETURN_IF_ERROR(place(options, v_.values, arguments_.v));
    MK_RETURN_IF_ERROR(place(options, lengths_.q.indices, arguments_.cu_seqlens_q));
    if (alone_) MK_RETURN_IF_ERROR(place(options, lengths_.k.indices, arguments_.cu_seqlens_k));
    MK_RETURN_IF_ERROR(place_result(options, lse_, arguments_.lse));
    return place_result(options, out_, arguments_.out);
  }

  Result<Pending> launch(const ExecutorOptions& options) override {
    return operation_->launch(arguments_, options);
  }
  const Planned& operation() const override { return *operation_; }

  Status save(const Options& options, Outputs& outputs) override {
    MK_RETURN_IF_ERROR(Job::save(options, outputs));
    if (options.lse.empty()) return {};
    std::vector<std::int64_t> shape{shape_.heads, q_positions()};
    if (!packed_) shape.insert(shape.begin(), shape_.batch);
    return outputs.write("--lse", shape, lse_);
  }

 private:
  std::int64_t q_positions() const { return positions_of(q_); }

  /// Of packed sequences every rank brings equally many.
  Result<std::int64_t> rows_of_all(Group& group, const Options& options) const {
    const auto parts = gather(group, q_positions());
    if (!parts.ok()) return parts.status();
    auto rows = total_of(parts.value(), "sequence", options.sequence, [&](auto, auto total) {
      return total / static_cast<std::int64_t>(group.world_size());
    });
    if (!rows.ok()) return rows.status().with_context("positions of --q");
    return rows;
  }

  bool alone_ = false, packed_ = false;
  AttentionShape shape_;
  Operand q_, k_, v_;
  PackedLengths lengths_;
  std::vector<float> lse_;  ///< [batch, heads, positions], or none
  AttentionArguments arguments_;
  std::optional<Attention> operation_;
};

}  // namespace

std::unique_ptr<Job> make_attention_job() {
  return std::make_unique<AttentionJob>();
}

}  // namespace mkernel::mkrun

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/mkrun/job.h"
#include "tools/mkrun/npy.h"

namespace mkernel::mkrun {
namespace {

/// Ring attention, or attention of every rank alone.
class AttentionJob : public Job {
 public:
  Status load(const Options& options) override {
    alone_ = options.op == "attention";
    packed_ = !options.cu_seqlens.empty();
    auto q = load_tensor("--q", options.q, -1, -1, -1, options);
    if (!q.ok()) return q.status();
    q_ = std::move(*q);
    auto k = load_tensor("--k", options.k, alone_ ? -1 : q_positions(), -1, head_dim(), options);
    if (!k.ok()) return k.status();
    k_ = std::move(*k);
    const std::int64_t keys = positions_of_tensor(k_), kv_heads = k_.shape[k_.shape.size() - 2];
    auto v = load_tensor("--v", options.v, keys, kv_heads, head_dim(), options);
    if (!v.ok()) return v.status();
    v_ = std::move(*v);
    shape_ = {.batch = packed_ ? 1 : q_.shape[0],
              .sequence = q_positions(),
              .heads = q_.shape[q_.shape.size() - 2],
              .kv_heads = kv_heads,
              .head_dim = head_dim(),
              .causal = options.causal,
              .scale = options.scale,
              .dtype = options.dtype,
              .keys = alone_ ? keys : 0};
    return packed_ ? load_lengths(options) : Status();
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
    MK_RETURN_IF_ERROR(place(options, lengths_.indices, arguments_.cu_seqlens_q));
    if (alone_) MK_RETURN_IF_ERROR(place(options, lengths_k_.indices, arguments_.cu_seqlens_k));
    MK_RETURN_IF_ERROR(place_result(options, lse_, arguments_.lse));
    return place_result(options, out_, arguments_.out);
  }

  Result<Pending> launch(const ExecutorOptions& options) override {
    return operation_->launch(arguments_, options);
  }
  const Planned& operation() const override { return *operation_; }

  Status save(const Options& options) override {
    MK_RETURN_IF_ERROR(Job::save(options));
    if (options.lse.empty()) return {};
    std::vector<std::int64_t> shape{shape_.heads, q_positions()};
    if (!packed_) shape.insert(shape.begin(), shape_.batch);
    return write_npy(options.lse, shape, lse_).with_context("--lse");
  }

 private:
  /// [batch, positions, heads, head_dim], packed sequences without a batch. -1: any.
  Result<Operand> load_tensor(const std::string& flag, const std::string& path, std::int64_t positions,
                              std::int64_t heads, std::int64_t head_dim, const Options& options) const {
    std::vector<Extent> wanted{
        {"positions of this rank", positions}, {"heads", heads}, {"head_dim", head_dim}};
    if (!packed_) wanted.insert(wanted.begin(), {"batch", q_.shape.empty() ? -1 : q_.shape[0]});
    return load_values(flag, path, wanted, options.dtype);
  }
  static std::int64_t positions_of_tensor(const Operand& tensor) {
    return tensor.shape[tensor.shape.size() - 3];
  }
  std::int64_t q_positions() const { return positions_of_tensor(q_); }
  std::int64_t head_dim() const { return q_.shape.back(); }

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

  Status load_lengths(const Options& options) {
    auto lengths = load_indices("--cu-seqlens", options.cu_seqlens, {{"sequences + 1"}});
    if (!lengths.ok()) return lengths.status();
    lengths_ = std::move(*lengths);
    lengths_k_ = lengths_;
    shape_.max_sequences = lengths_.shape[0] - 1;
    if (options.cu_seqlens_k.empty()) return {};
    auto of_keys =
        load_indices("--cu-seqlens-k", options.cu_seqlens_k, {{"sequences + 1", lengths_.shape[0]}});
    if (of_keys.ok()) lengths_k_ = std::move(*of_keys);
    return of_keys.status();
  }

  bool alone_ = false, packed_ = false;
  AttentionShape shape_;
  Operand q_, k_, v_, lengths_, lengths_k_;
  std::vector<float> lse_;  ///< [batch, heads, positions], or none
  AttentionArguments arguments_;
  std::optional<Attention> operation_;
};

}  // namespace

std::unique_ptr<Job> make_attention_job() {
  return std::make_unique<AttentionJob>();
}

}  // namespace mkernel::mkrun

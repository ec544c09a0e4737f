#include <optional>

#include "tools/mkrun/job.h"

namespace mkernel::mkrun {
namespace {

/// Positions that `rank` holds: see AttentionShape.
std::int64_t positions_of(bool causal, std::int64_t sequence, std::int64_t world, std::int64_t rank) {
  if (!causal) return block_range(sequence, world, rank).size();
  return block_range(sequence, 2 * world, rank).size() +
         block_range(sequence, 2 * world, 2 * world - 1 - rank).size();
}

class AttentionJob : public Job {
 public:
  Status load(const Options& options) override {
    auto q = load_values("--q", options.q, {{"batch"}, {"positions of this rank"}, {"heads"}, {"head_dim"}},
                         options.dtype);
    if (!q.ok()) return q.status();
    const std::vector<Extent> wanted = {
        {"batch", q->shape[0]}, {"positions", q->shape[1]}, {"kv_heads"}, {"head_dim", q->shape[3]}};
    auto k = load_values("--k", options.k, wanted, options.dtype);
    if (!k.ok()) return k.status();
    std::vector<Extent> as_k = wanted;
    as_k[2].value = k->shape[2];
    auto v = load_values("--v", options.v, as_k, options.dtype);
    if (!v.ok()) return v.status();
    shape_ = {.batch = q->shape[0],
              .heads = q->shape[2],
              .kv_heads = k->shape[2],
              .head_dim = q->shape[3],
              .causal = options.causal,
              .scale = options.scale,
              .dtype = options.dtype};
    q_ = std::move(*q);
    k_ = std::move(*k);
    v_ = std::move(*v);
    return {};
  }

  Status plan(Group& group, const Options& options) override {
    const auto world = static_cast<std::int64_t>(group.world_size());
    const auto parts = gather(group, q_.shape[1]);
    if (!parts.ok()) return parts.status();
    const auto sequence = total_of(parts.value(), "sequence", options.sequence, [&](auto rank, auto total) {
      return positions_of(options.causal, total, world, rank);
    });
    if (!sequence.ok()) return sequence.status().with_context("positions of --q");
    shape_.sequence = sequence.value();
    auto made = group.ring_attention(shape_);
    if (!made.ok()) return made.status();
    operation_.emplace(std::move(*made));
    make_out(q_.shape);
    return {};
  }

  Result<Pending> launch(const ExecutorOptions& options) override {
    return operation_->launch({q_.values.data(), k_.values.data(), v_.values.data(), out_.data()}, options);
  }
  const Planned& operation() const override { return *operation_; }

 private:
  AttentionShape shape_;
  Operand q_, k_, v_;
  std::optional<RingAttention> operation_;
};

}  // namespace

std::unique_ptr<Job> make_attention_job() {
  return std::make_unique<AttentionJob>();
}

}  // namespace mkernel::mkrun

#include <memory>
#include <optional>
#include <vector>

#include "tools/mkrun/executor_array.h"
#include "tools/mkrun/job.h"
#include "tools/mkrun/npy.h"

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
    auto made = group.ring_attention(shape_, options.executor);
    if (!made.ok()) return made.status();
    operation_.emplace(std::move(*made));
    make_out(q_.shape);
    if (!options.lse.empty()) lse_.resize(static_cast<std::size_t>(q_.shape[0] * q_.shape[1] * q_.shape[2]));
    return place(options.device);
  }

  Result<Pending> launch(const ExecutorOptions& options) override {
    return operation_->launch({arrays_[kQ]->get(), arrays_[kK]->get(), arrays_[kV]->get(),
                               arrays_[kOut]->get(), static_cast<float*>(arrays_[kLse]->get())},
                              options);
  }
  const Planned& operation() const override { return *operation_; }

  Status save(const Options& options) override {
    for (const int written : {kOut, kLse})
      MK_RETURN_IF_ERROR(arrays_[static_cast<std::size_t>(written)]->fetch());
    MK_RETURN_IF_ERROR(Job::save(options));
    if (options.lse.empty()) return {};
    const std::vector<std::int64_t> shape{q_.shape[0], q_.shape[2], q_.shape[1]};
    return write_npy(options.lse, shape, lse_).with_context("--lse");
  }

 private:
  enum { kQ, kK, kV, kOut, kLse };

  /// Operands and results, where the executor finds them.
  Status place(std::optional<int> device) {
    for (std::vector<std::uint16_t>* values : {&q_.values, &k_.values, &v_.values, &out_})
      MK_RETURN_IF_ERROR(place(values->data(), values->size() * sizeof(std::uint16_t), device));
    return place(lse_.data(), lse_.size() * sizeof(float), device);
  }
  Status place(void* host, std::uint64_t bytes, std::optional<int> device) {
    auto array = executor_array(host, bytes, device);
    if (array.ok()) arrays_.push_back(std::move(*array));
    return array.status();
  }

  AttentionShape shape_;
  Operand q_, k_, v_;
  std::vector<float> lse_;  ///< [batch, heads, positions], or none
  std::optional<RingAttention> operation_;
  std::vector<std::unique_ptr<ExecutorArray>> arrays_;
};

}  // namespace

std::unique_ptr<Job> make_attention_job() {
  return std::make_unique<AttentionJob>();
}

}  // namespace mkernel::mkrun

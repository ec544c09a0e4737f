// Attention of a rank alone on the cuda executor; see op_cuda.h.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tools/mkbench/gpu_attention_reference.h"
#include "tools/mkbench/op_cuda.h"
#include "tools/mkbench/op_measurement.h"
#include "tools/mkbench/random.h"
#include "tools/mkbench/report.h"
#include "tools/mkbench/workload.h"

namespace mkernel::bench {
namespace {

class AttentionMeasurement final : public OpMeasurement {
 public:
  using OpMeasurement::OpMeasurement;

  Status prepare(AttentionShape shape) {
    MK_RETURN_IF_ERROR(begin());
    auto op = group().attention(shape, Executor::kCuda, options().plan);
    if (!op.ok()) return op.status();
    op_ = std::move(*op);
    if (shape.keys == 0) shape.keys = shape.sequence;
    shape_ = shape;
    const int sets = std::min(options().iterations, kMostPerRound / 4) + 1;
    for (int i = 0; i < sets; ++i) MK_RETURN_IF_ERROR(allocate(sets_.emplace_back()));
    return {};
  }

 private:
  struct Set {
    GpuBuffer q, k, v, out, lse;
  };

  Planned& operation() override { return *op_; }
  Status enqueue(int set, const ExecutorOptions& options) override {
    return op_->enqueue(arguments(set), stream().get(), options);
  }
  int sets() const override { return static_cast<int>(sets_.size()); }
  Status fill(int set, std::uint64_t iteration) override;
  Result<Outcome> judge(int set) override {
    // All queries of small shapes; of large ones some thousands, of all heads.
    constexpr std::int64_t kLooked = 1 << 15;
    const std::int64_t rows = shape_.batch * shape_.heads * shape_.sequence;
    const std::int64_t step = rows > kLooked ? (rows / kLooked) | 1 : 1;
    auto check = check_attention(arguments(set), shape_, step, stream().get());
    if (!check.ok()) return check.status();
    return Outcome{*check};
  }
  void describe(Row& row) const override {
    row.shape = json_of(OpKind::kAttention, shape_);
    row.shape["executor"] = "cuda";
    row.shape_text = text_of(shape_);
  }
  void finish(Row& row) const override {
    row.shape["tflops"] = 1e-9 * operations() / median(row.milliseconds);
  }

  Status allocate(Set& set) const;
  AttentionArguments arguments(int set) const {
    const Set& s = sets_[static_cast<std::size_t>(set)];
    return {s.q.get(), s.k.get(), s.v.get(), s.out.get(), static_cast<float*>(s.lse.get())};
  }
  std::int64_t bytes(std::int64_t positions, std::int64_t heads) const {
    return shape_.batch * positions * heads * shape_.head_dim * 2;
  }
  /// Of both products, without what the mask hides, as is usual.
  double operations() const {
    const double pairs =
        static_cast<double>(shape_.batch * shape_.heads * shape_.sequence) * static_cast<double>(shape_.keys);
    return 4 * pairs * static_cast<double>(shape_.head_dim) * (shape_.causal ? 0.5 : 1);
  }

  std::optional<Attention> op_;
  AttentionShape shape_;
  std::vector<Set> sets_;
};

Status AttentionMeasurement::allocate(Set& set) const {
  const std::int64_t queries = bytes(shape_.sequence, shape_.heads),
                     keys = bytes(shape_.keys, shape_.kv_heads);
  for (const auto& [buffer, size] : {std::pair{&set.q, queries},
                                     {&set.k, keys},
                                     {&set.v, keys},
                                     {&set.out, queries},
                                     {&set.lse, queries / shape_.head_dim * 2}}) {
    auto made = GpuBuffer::allocate(static_cast<std::uint64_t>(size));
    if (!made.ok()) return made.status();
    *buffer = std::move(*made);
  }
  return {};
}

Status AttentionMeasurement::fill(int set, std::uint64_t iteration) {
  const Set& s = sets_[static_cast<std::size_t>(set)];
  std::uint64_t which = 0;
  for (const GpuBuffer* buffer : {&s.q, &s.k, &s.v}) {
    const std::uint64_t seed =
        seed_of(static_cast<std::uint64_t>(OpKind::kAttention), iteration, group().rank(), ++which);
    MK_RETURN_IF_ERROR(fill_random(buffer->get(), shape_.dtype, buffer->bytes() / 2, seed, stream().get()));
  }
  MK_RETURN_IF_ERROR(poison(s.lse, stream().get()));
  return poison(s.out, stream().get());
}

}  // namespace

Result<Row> measure_attention_cuda(Group& group, const AttentionShape& shape, const OpCudaOptions& options) {
  AttentionMeasurement measurement(group, options);
  MK_RETURN_IF_ERROR(measurement.prepare(shape));
  return measurement.measure();
}

}  // namespace mkernel::bench

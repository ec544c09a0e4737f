// AG+GEMM, GEMM+RS and GEMM+AR: the reference is an fp32 BLAS product of the inputs of all ranks.
#include <cmath>
#include <string>
#include <utility>

#include "kernels/cpu/memory/convert.h"
#include "tools/mkbench/tensor.h"
#include "tools/mkbench/workload.h"

namespace mkernel::bench {
namespace {

class GemmWorkload final : public Workload {
  enum Operand : std::uint64_t { kA = 1, kB = 2 };

 public:
  GemmWorkload(Group& group, OpKind kind, const GemmShape& shape, Gemm op)
      : kind_(kind), shape_(shape), world_(group.world_size()), rank_(group.rank()), op_(std::move(op)) {}

  nlohmann::json shape() const override {
    return {{"op", to_string(kind_)},
            {"m", shape_.m},
            {"n", shape_.n},
            {"k", shape_.k},
            {"dtype", to_string(shape_.dtype)}};
  }
  std::string shape_text() const override {
    return std::to_string(shape_.m) + " x " + std::to_string(shape_.n) + " x " + std::to_string(shape_.k);
  }

  void prepare(std::uint64_t iteration) override {
    iteration_ = iteration;
    a_ = operand(rank_, kA);
    b_ = operand(rank_, kB);
    c_ = poisoned(static_cast<std::size_t>(out_rows().size() * shape_.n));
  }

  Result<Pending> launch(const ExecutorOptions& options) override {
    return op_.launch({.a = a_.data(), .b = b_.data(), .c = c_.data()}, options);
  }
  std::uint64_t wire_bytes() const override { return op_.wire_bytes(); }

  Verdict verify() const override {
    const std::vector<float> out = to_float(shape_.dtype, c_);
    std::vector<float> reference(out.size(), 0), magnitude(out.size(), 0);
    if (kind_ == OpKind::kAgGemm) {
      gathered_product(reference);
    } else {
      summed_product(reference, magnitude);
    }
    // The result is rounded once; partial sums that travel are rounded on their way (in the node, between
    // nodes).
    const double roundoff = 1.01 * kernels::rounding_unit(shape_.dtype);
    const double slack = 1e-6 * std::sqrt(static_cast<double>(shape_.k) * world_);
    std::vector<float> bound(out.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      bound[i] = static_cast<float>(roundoff * (std::abs(reference[i]) + 2 * magnitude[i]) + slack);
    }
    return compare(out, reference, bound);
  }

 private:
  std::int64_t a_rows(std::uint32_t rank) const {
    return kind_ == OpKind::kAgGemm ? block_range(shape_.m, world_, rank).size() : shape_.m;
  }
  Range out_rows() const {
    return kind_ == OpKind::kGemmRs ? block_range(shape_.m, world_, rank_) : Range{0, shape_.m};
  }
  std::vector<std::uint16_t> operand(std::uint32_t rank, Operand which) const {
    const std::int64_t count = which == kA ? a_rows(rank) * shape_.k : shape_.k * shape_.n;
    return random_tensor(shape_.dtype, seed_of(static_cast<std::uint64_t>(kind_), iteration_, rank, which),
                         static_cast<std::size_t>(count));
  }

  void gathered_product(std::vector<float>& reference) const {
    const std::vector<float> b = to_float(shape_.dtype, b_);
    for (std::uint32_t rank = 0; rank < world_; ++rank) {
      const Range rows = block_range(shape_.m, world_, rank);
      const std::vector<float> a = to_float(shape_.dtype, operand(rank, kA));
      reference_gemm(rows.size(), shape_.n, shape_.k, a.data(), b.data(), shape_.b_layout,
                     reference.data() + rows.begin * shape_.n);
    }
  }

  void summed_product(std::vector<float>& reference, std::vector<float>& magnitude) const {
    const Range rows = out_rows();
    std::vector<float> partial(reference.size());
    for (std::uint32_t rank = 0; rank < world_; ++rank) {
      const std::vector<float> a = to_float(shape_.dtype, operand(rank, kA));
      const std::vector<float> b = to_float(shape_.dtype, operand(rank, kB));
      reference_gemm(rows.size(), shape_.n, shape_.k, a.data() + rows.begin * shape_.k, b.data(),
                     shape_.b_layout, partial.data());
      for (std::size_t i = 0; i < partial.size(); ++i) {
        reference[i] += partial[i];
        magnitude[i] += std::abs(partial[i]);
      }
    }
  }

  OpKind kind_;
  GemmShape shape_;
  std::uint32_t world_, rank_;
  Gemm op_;
  std::uint64_t iteration_ = 0;
  std::vector<std::uint16_t> a_, b_, c_;
};

}  // namespace

Result<std::unique_ptr<Workload>> make_gemm_workload(Group& group, OpKind kind, const GemmShape& shape) {
  auto op = kind == OpKind::kAgGemm   ? group.ag_gemm(shape)
            : kind == OpKind::kGemmRs ? group.gemm_rs(shape)
                                      : group.gemm_ar(shape);
  if (!op.ok()) return op.status();
  return std::unique_ptr<Workload>(std::make_unique<GemmWorkload>(group, kind, shape, std::move(op).value()));
}

}  // namespace mkernel::bench

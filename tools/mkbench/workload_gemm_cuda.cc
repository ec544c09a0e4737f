// AG+GEMM, GEMM+RS and GEMM+AR on the cuda executor. Every rank makes the operands of all ranks from their
// seeds, so that it can check its result on its own GPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/memory/cuda_error.h"
#include "tools/mkbench/gpu_matrix.h"
#include "tools/mkbench/random.h"
#include "tools/mkbench/tensor.h"
#include "tools/mkbench/workload.h"

namespace mkernel::bench {
namespace {

enum Operand : std::uint64_t { kA = 1, kB = 2 };

class GemmCudaWorkload : public Workload {
 public:
  GemmCudaWorkload(Group& group, OpKind kind, const GemmShape& shape, Gemm op)
      : kind_(kind), shape_(shape), world_(group.world_size()), rank_(group.rank()), op_(std::move(op)) {}

  nlohmann::json shape() const override {
    return {{"op", to_string(kind_)}, {"executor", "cuda"}, {"m", shape_.m},
            {"n", shape_.n},          {"k", shape_.k},      {"dtype", to_string(shape_.dtype)}};
  }
  std::string shape_text() const override {
    return std::to_string(shape_.m) + " x " + std::to_string(shape_.n) + " x " + std::to_string(shape_.k);
  }
  void prepare(std::uint64_t iteration) override {
    iteration_ = iteration;
    prepared_ = fill();
    if (prepared_.ok()) prepared_ = poison(c_, nullptr);
    if (prepared_.ok()) prepared_ = kernels::cuda_status(cudaDeviceSynchronize(), "inputs");
  }
  Result<Pending> launch(const ExecutorOptions& options) override {
    MK_RETURN_IF_ERROR(prepared_);
    return op_.launch(arguments(), options);
  }
  std::uint64_t wire_bytes() const override { return op_.wire_bytes(); }
  Verdict verify() const override {
    const auto elements = static_cast<std::uint64_t>(out_rows().size() * shape_.n);
    if (elements == 0) return {};
    const auto check = compare();
    if (!check.ok()) return {elements, elements, 0};  // nothing is known of any element
    return {elements, check->wrong, check->relative_error};
  }

  virtual Status allocate() = 0;

 protected:
  virtual GemmArguments arguments() const = 0;
  virtual Status fill() = 0;
  virtual Result<ProductCheck> compare() const = 0;

  Range out_rows() const {
    return kind_ == OpKind::kGemmRs ? block_range(shape_.m, world_, rank_) : Range{0, shape_.m};
  }
  /// Room for `elements`; a few when there are none.
  static Status allocate(GpuBuffer& buffer, std::int64_t elements) {
    auto memory = GpuBuffer::allocate(static_cast<std::uint64_t>(std::max<std::int64_t>(elements, 8)) * 2);
    if (!memory.ok()) return memory.status();
    buffer = std::move(*memory);
    return {};
  }
  Status fill_operand(void* data, std::int64_t elements, std::uint32_t rank, Operand which) const {
    return fill_random(data, shape_.dtype, static_cast<std::uint64_t>(elements),
                       seed_of(static_cast<std::uint64_t>(kind_), iteration_, rank, which), nullptr);
  }

  const OpKind kind_;
  const GemmShape shape_;
  const std::uint32_t world_, rank_;
  Gemm op_;
  GpuBuffer c_;

 private:
  std::uint64_t iteration_ = 0;
  Status prepared_;
};

class AgGemmCuda final : public GemmCudaWorkload {
 public:
  using GemmCudaWorkload::GemmCudaWorkload;

  Status allocate() override {
    MK_RETURN_IF_ERROR(GemmCudaWorkload::allocate(a_, shape_.m * shape_.k));
    MK_RETURN_IF_ERROR(GemmCudaWorkload::allocate(b_, shape_.k * shape_.n));
    return GemmCudaWorkload::allocate(c_, shape_.m * shape_.n);
  }

 private:
  std::byte* rows_of(std::uint32_t rank) const {
    return static_cast<std::byte*>(a_.get()) + block_range(shape_.m, world_, rank).begin * shape_.k * 2;
  }
  GemmArguments arguments() const override { return {rows_of(rank_), b_.get(), c_.get()}; }
  Status fill() override {
    for (std::uint32_t rank = 0; rank < world_; ++rank) {
      MK_RETURN_IF_ERROR(
          fill_operand(rows_of(rank), block_range(shape_.m, world_, rank).size() * shape_.k, rank, kA));
    }
    return fill_operand(b_.get(), shape_.k * shape_.n, rank_, kB);
  }
  Result<ProductCheck> compare() const override {
    return check_product({a_.get(), b_.get(), c_.get()}, shape_, false, nullptr);
  }

  GpuBuffer a_;  ///< [m, k]: the rows of all ranks
  GpuBuffer b_;
};

class GemmRsCuda final : public GemmCudaWorkload {
 public:
  using GemmCudaWorkload::GemmCudaWorkload;

  Status allocate() override {
    a_.resize(world_);
    b_.resize(world_);
    for (std::uint32_t rank = 0; rank < world_; ++rank) {
      MK_RETURN_IF_ERROR(GemmCudaWorkload::allocate(a_[rank], shape_.m * shape_.k));
      MK_RETURN_IF_ERROR(GemmCudaWorkload::allocate(b_[rank], shape_.k * shape_.n));
    }
    return GemmCudaWorkload::allocate(c_, out_rows().size() * shape_.n);
  }

 private:
  GemmArguments arguments() const override { return {a_[rank_].get(), b_[rank_].get(), c_.get()}; }
  Status fill() override {
    for (std::uint32_t rank = 0; rank < world_; ++rank) {
      MK_RETURN_IF_ERROR(fill_operand(a_[rank].get(), shape_.m * shape_.k, rank, kA));
      MK_RETURN_IF_ERROR(fill_operand(b_[rank].get(), shape_.k * shape_.n, rank, kB));
    }
    return {};
  }
  Result<ProductCheck> compare() const override {
    std::vector<GemmArguments> partials;
    for (std::uint32_t rank = 0; rank < world_; ++rank)
      partials.push_back({a_[rank].get(), b_[rank].get(), nullptr});
    return check_reduced_product(partials, c_.get(), shape_, out_rows(), nullptr);
  }

  std::vector<GpuBuffer> a_, b_;  ///< of all ranks
};

}  // namespace

Result<std::unique_ptr<Workload>> make_gemm_cuda_workload(Group& group, OpKind kind, const GemmShape& shape,
                                                          int device) {
  MK_RETURN_IF_ERROR(kernels::cuda_status(cudaSetDevice(device), "GPU " + std::to_string(device)));
  auto op = kind == OpKind::kAgGemm   ? group.ag_gemm(shape, Executor::kCuda)
            : kind == OpKind::kGemmRs ? group.gemm_rs(shape, Executor::kCuda)
                                      : group.gemm_ar(shape, Executor::kCuda);
  if (!op.ok()) return op.status();
  std::unique_ptr<GemmCudaWorkload> work;
  if (kind == OpKind::kAgGemm) {
    work = std::make_unique<AgGemmCuda>(group, kind, shape, std::move(*op));
  } else {
    work = std::make_unique<GemmRsCuda>(group, kind, shape, std::move(*op));
  }
  MK_RETURN_IF_ERROR(work->allocate());
  return std::unique_ptr<Workload>(std::move(work));
}

}  // namespace mkernel::bench

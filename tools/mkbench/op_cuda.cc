#include "tools/mkbench/op_cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "kernels/cuda/gemm/gemm_sm90.h"
#include "kernels/cuda/memory/hopper.h"
#include "tools/mkbench/cublas.h"
#include "tools/mkbench/gpu_gemm_case.h"
#include "tools/mkbench/nccl.h"
#include "tools/mkbench/op_measurement.h"
#include "tools/mkbench/report.h"
#include "tools/mkbench/workload.h"

namespace mkernel::bench {
namespace {

class GemmMeasurement final : public OpMeasurement {
 public:
  using OpMeasurement::OpMeasurement;

  Status prepare(OpKind kind, const GemmShape& shape);

 private:
  Planned& operation() override { return *op_; }
  Status enqueue(int set, const ExecutorOptions& options) override {
    return op_->enqueue(case_->arguments(set), stream().get(), options);
  }
  int sets() const override { return case_->sets(); }
  Status fill(int set, std::uint64_t iteration) override { return case_->fill(set, iteration); }
  Result<Outcome> judge(int set) override;
  void describe(Row& row) const override;
  Status capture_baselines() override;
  Status time_baselines() override;
  void finish(Row& row) const override;

  int count_sets(const GemmShape& shape) const;
  Status prepare_products();
  Status prepare_cublas();
  Status prepare_own_product();
  Status prepare_nccl();
  GemmArguments product_arguments(int set) const;
  Status cublas_product(int set) const { return cublas_->gemm(product_arguments(set), case_->shape()); }
  Status product_and_nccl(int set) const;

  std::optional<Gemm> op_;
  std::optional<GpuGemmCase> case_;
  std::optional<Cublas> cublas_;
  GpuBuffer whole_;  ///< the baselines': gathered a, or this rank's whole product
  GpuBuffer out_;    ///< the baselines' c
  std::optional<Side> gemm_, product_, nccl_;
};

/// So many that three times the L2 goes by between two uses of a set; one more than are timed.
int GemmMeasurement::count_sets(const GemmShape& shape) const {
  const std::int64_t world = group().world_size();
  int device = 0, l2 = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device);
  const std::int64_t bytes = 2 * (shape.m * shape.k / world + shape.k * shape.n + shape.m * shape.n / world);
  const auto wanted = static_cast<int>(std::min<std::int64_t>(3 * std::int64_t{l2} / bytes, kMostPerRound));
  return std::min(std::max(wanted, 2), options().iterations) + 1;
}

Status GemmMeasurement::prepare(OpKind kind, const GemmShape& shape) {
  MK_RETURN_IF_ERROR(begin());
  const GemmPlanOptions& plan = options().plan;
  auto op = kind == OpKind::kAgGemm   ? group().ag_gemm(shape, Executor::kCuda, plan)
            : kind == OpKind::kGemmRs ? group().gemm_rs(shape, Executor::kCuda, plan)
                                      : group().gemm_ar(shape, Executor::kCuda, plan);
  if (!op.ok()) return op.status();
  op_ = std::move(*op);
  auto made =
      GpuGemmCase::make(kind, shape, group().world_size(), group().world_size() / group().node_count(),
                        group().rank(), count_sets(shape), stream().get());
  if (!made.ok()) return made.status();
  case_ = std::move(*made);
  return {};
}

Result<OpMeasurement::Outcome> GemmMeasurement::judge(int set) {
  auto check = case_->verify(set);
  if (!check.ok()) return check.status();
  Outcome mine{*check};
  if (case_->kind() != OpKind::kGemmAr) return mine;
  auto digest = case_->digest(set);
  if (!digest.ok()) return digest.status();
  mine.digest = *digest;
  return mine;
}

void GemmMeasurement::describe(Row& row) const {
  const GemmShape& shape = case_->shape();
  row.shape = {{"op", to_string(case_->kind())},
               {"executor", "cuda"},
               {"m", shape.m},
               {"n", shape.n},
               {"k", shape.k},
               {"dtype", to_string(shape.dtype)},
               {"b_layout", shape.b_layout == Layout::kRowMajor ? "row-major" : "column-major"}};
  row.shape_text =
      std::to_string(shape.m) + " x " + std::to_string(shape.n) + " x " + std::to_string(shape.k);
}

Status GemmMeasurement::capture_baselines() {
  const bool divides = case_->shape().m % group().world_size() == 0;
  const bool with_nccl = options().nccl != nullptr && divides;
  if (options().gemm || options().product || with_nccl) MK_RETURN_IF_ERROR(prepare_products());
  if (options().gemm || with_nccl) MK_RETURN_IF_ERROR(prepare_cublas());
  if (options().product) MK_RETURN_IF_ERROR(prepare_own_product());
  return with_nccl ? prepare_nccl() : Status();
}

/// Memory of the products alone.
Status GemmMeasurement::prepare_products() {
  const GemmShape& shape = case_->shape();
  const bool gathers = case_->kind() == OpKind::kAgGemm;
  const auto whole = static_cast<std::uint64_t>(shape.m * (gathers ? shape.k : shape.n));
  auto whole_memory = GpuBuffer::allocate(whole * 2);
  if (!whole_memory.ok()) return whole_memory.status();
  whole_ = std::move(*whole_memory);
  auto out = GpuBuffer::allocate(static_cast<std::uint64_t>(shape.m * shape.n) * 2);
  if (!out.ok()) return out.status();
  out_ = std::move(*out);
  // Until a gather has filled it: power, and with it the clock, depends on the values.
  return fill_random(whole_.get(), shape.dtype, whole, 1, stream().get());
}

Status GemmMeasurement::prepare_cublas() {
  auto cublas = Cublas::open(stream().get());
  if (!cublas.ok()) return cublas.status();
  cublas_ = std::move(*cublas);
  if (options().plan.sms > 0) MK_RETURN_IF_ERROR(cublas_->target_sms(options().plan.sms));
  MK_RETURN_IF_ERROR(cublas_product(0));  // loads its kernels: not while a graph is captured
  MK_RETURN_IF_ERROR(stream().synchronize());
  if (!options().gemm) return {};
  return capture(gemm_.emplace(), [&](int set) { return cublas_product(set); });
}

Status GemmMeasurement::prepare_own_product() {
  auto machine = kernels::hopper_machine("mkbench op", options().plan.machine, options().plan.sms);
  if (!machine.ok()) return machine.status();
  const kernels::Sm90LocalPlan plan = kernels::plan_sm90_local(case_->shape(), *machine);
  const auto queue = [&](int set) {
    return kernels::gemm_sm90(product_arguments(set), case_->shape(), plan, stream().get());
  };
  MK_RETURN_IF_ERROR(queue(0));  // loads its kernel: not while a graph is captured
  MK_RETURN_IF_ERROR(stream().synchronize());
  return capture(product_.emplace(), queue);
}

/// The product of a set as a baseline computes it, alone.
GemmArguments GemmMeasurement::product_arguments(int set) const {
  GemmArguments at = case_->arguments(set);
  const bool gathers = case_->kind() == OpKind::kAgGemm;
  if (gathers) at.a = whole_.get();
  at.c = gathers ? out_.get() : whole_.get();
  return at;
}

Status GemmMeasurement::prepare_nccl() {
  MK_RETURN_IF_ERROR(product_and_nccl(0));  // connects the ranks
  MK_RETURN_IF_ERROR(stream().synchronize());
  return capture(nccl_.emplace(), [&](int set) { return product_and_nccl(set); });
}

Status GemmMeasurement::product_and_nccl(int set) const {
  const GemmShape& shape = case_->shape();
  const Nccl& nccl = *options().nccl;
  const auto product_elements = static_cast<std::uint64_t>(shape.m * shape.n);
  if (case_->kind() == OpKind::kAgGemm) {
    const auto own_elements = static_cast<std::uint64_t>(shape.m * shape.k) / group().world_size();
    MK_RETURN_IF_ERROR(
        nccl.all_gather(case_->arguments(set).a, whole_.get(), own_elements, shape.dtype, stream().get()));
    return cublas_product(set);
  }
  MK_RETURN_IF_ERROR(cublas_product(set));
  if (case_->kind() == OpKind::kGemmRs) {
    return nccl.reduce_scatter(whole_.get(), out_.get(), product_elements / group().world_size(), shape.dtype,
                               stream().get());
  }
  return nccl.all_reduce(whole_.get(), out_.get(), product_elements, shape.dtype, stream().get());
}

Status GemmMeasurement::time_baselines() {
  for (std::optional<Side>* side : {&gemm_, &product_, &nccl_})
    if (*side) MK_RETURN_IF_ERROR(time(**side));
  return {};
}

void GemmMeasurement::finish(Row& row) const {
  if (gemm_) row.gemm_ms = median(gemm_->milliseconds);
  if (product_) row.product_ms = median(product_->milliseconds);
  if (nccl_) row.cublas_nccl_ms = median(nccl_->milliseconds);
}

}  // namespace

Result<Row> measure_op_cuda(Group& group, OpKind kind, const GemmShape& shape, const OpCudaOptions& options) {
  GemmMeasurement measurement(group, options);
  MK_RETURN_IF_ERROR(measurement.prepare(kind, shape));
  return measurement.measure();
}

}  // namespace mkernel::bench

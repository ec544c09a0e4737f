#include "tools/mkbench/gemm_cuda.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/gemm/gemm_sm90.h"
#include "kernels/memory/cuda_error.h"
#include "tools/mkbench/report.h"

namespace mkernel::bench {
namespace {

using kernels::cuda_status;

Status cublas_status(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return {StatusCode::kInternal, std::string(what) + ": " + cublasGetStatusString(status)};
}

struct DestroyStream {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
struct DestroyCublas {
  void operator()(cublasHandle_t handle) const { cublasDestroy(handle); }
};
using Stream = std::unique_ptr<CUstream_st, DestroyStream>;
using Event = std::unique_ptr<CUevent_st, DestroyEvent>;
using Cublas = std::unique_ptr<cublasContext, DestroyCublas>;

/// Operands of one call.
struct Set {
  GpuBuffer a, b, c;
  GemmArguments arguments() const { return {a.get(), b.get(), c.get()}; }
};

/// Stream, cuBLAS, the sets that calls go through in turn, and one event per border between calls.
class Bench {
 public:
  Status prepare(const GemmShape& shape, const GemmCudaOptions& options);
  Status ours() {
    return kernels::gemm_sm90(next().arguments(), shape_, {options_.fp32_output, plan_}, stream_.get());
  }
  Status cublas();
  /// `calls` of each side in turn; times in ms.
  Status time(int calls, std::vector<double>& ours, std::vector<double>& cublas);
  Result<ProductCheck> check();
  const kernels::Sm90Plan& plan() const { return plan_; }

 private:
  const Set& next() { return sets_[position_++ % sets_.size()]; }
  Result<Set> make_set(std::uint64_t seed) const;

  GemmShape shape_;
  GemmCudaOptions options_;
  kernels::Sm90Plan plan_;
  Stream stream_;
  Cublas cublas_;
  GpuBuffer workspace_;
  std::vector<Set> sets_;
  std::size_t position_ = 0;
};

Result<Set> Bench::make_set(std::uint64_t seed) const {
  const auto m = static_cast<std::uint64_t>(shape_.m), n = static_cast<std::uint64_t>(shape_.n),
             k = static_cast<std::uint64_t>(shape_.k);
  auto a = GpuBuffer::allocate(m * k * 2);
  if (!a.ok()) return a.status();
  auto b = GpuBuffer::allocate(k * n * 2);
  if (!b.ok()) return b.status();
  auto c = GpuBuffer::allocate(m * n * (options_.fp32_output ? 4 : 2));
  if (!c.ok()) return c.status();
  MK_RETURN_IF_ERROR(fill_random(a->get(), shape_.dtype, m * k, 2 * seed, stream_.get()));
  MK_RETURN_IF_ERROR(fill_random(b->get(), shape_.dtype, k * n, 2 * seed + 1, stream_.get()));
  return Result<Set>(Set{std::move(a).value(), std::move(b).value(), std::move(c).value()});
}

Status Bench::prepare(const GemmShape& shape, const GemmCudaOptions& options) {
  shape_ = shape;
  options_ = options;
  int device = 0, sms = 0, l2 = 0;
  MK_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "device"));
  MK_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "SM count"));
  MK_RETURN_IF_ERROR(cuda_status(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device), "L2 size"));
  plan_ = options.tile ? kernels::plan_sm90(shape, sms, *options.tile, options.cluster)
                       : kernels::plan_sm90_any_cluster(shape, sms);
  if (options.band > 0) plan_.raster.band = options.band;

  cudaStream_t stream = nullptr;
  MK_RETURN_IF_ERROR(cuda_status(cudaStreamCreate(&stream), "stream"));
  stream_.reset(stream);
  cublasHandle_t handle = nullptr;
  MK_RETURN_IF_ERROR(cublas_status(cublasCreate(&handle), "cublasCreate"));
  cublas_.reset(handle);
  constexpr std::uint64_t kWorkspace = 64 << 20;
  auto workspace = GpuBuffer::allocate(kWorkspace);
  if (!workspace.ok()) return workspace.status();
  workspace_ = std::move(workspace).value();
  MK_RETURN_IF_ERROR(cublas_status(cublasSetStream(handle, stream), "cublasSetStream"));
  MK_RETURN_IF_ERROR(
      cublas_status(cublasSetWorkspace(handle, workspace_.get(), kWorkspace), "cublasSetWorkspace"));

  // Between two uses of a set, three times the L2 goes by.
  const std::int64_t set_bytes = 2 * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n);
  const std::int64_t count =
      std::clamp<std::int64_t>(3 * static_cast<std::int64_t>(l2) / set_bytes + 1, 2, 64);
  for (std::int64_t i = 0; i < count; ++i) {
    auto set = make_set(static_cast<std::uint64_t>(i) + 1);
    if (!set.ok()) return set.status();
    sets_.push_back(std::move(set).value());
  }
  return cuda_status(cudaStreamSynchronize(stream), "inputs");
}

Status Bench::cublas() {
  const GemmArguments at = next().arguments();
  const auto m = static_cast<int>(shape_.m), n = static_cast<int>(shape_.n), k = static_cast<int>(shape_.k);
  const cudaDataType_t type = shape_.dtype == DataType::kBf16 ? CUDA_R_16BF : CUDA_R_16F;
  const bool row_major = shape_.b_layout == Layout::kRowMajor;
  const float one = 1, zero = 0;
  // Column-major c^T[n, m] = b^T x a^T.
  return cublas_status(
      cublasGemmEx(cublas_.get(), row_major ? CUBLAS_OP_N : CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, at.b,
                   type, row_major ? n : k, at.a, type, k, &zero, at.c,
                   options_.fp32_output ? CUDA_R_32F : type, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "cublasGemmEx");
}

Status Bench::time(int calls, std::vector<double>& ours, std::vector<double>& cublas) {
  std::vector<Event> events;
  for (int i = 0; i <= 2 * calls; ++i) {
    cudaEvent_t event = nullptr;
    MK_RETURN_IF_ERROR(cuda_status(cudaEventCreate(&event), "event"));
    events.emplace_back(event);
  }
  // Pairs in the order ours, theirs, theirs, ours: each side follows each as often.
  const auto is_ours = [](int call) { return (call % 4 == 0) || (call % 4 == 3); };
  MK_RETURN_IF_ERROR(cuda_status(cudaEventRecord(events[0].get(), stream_.get()), "event"));
  for (int call = 0; call < 2 * calls; ++call) {
    MK_RETURN_IF_ERROR(is_ours(call) ? this->ours() : this->cublas());
    MK_RETURN_IF_ERROR(cuda_status(cudaEventRecord(events[call + 1].get(), stream_.get()), "event"));
  }
  MK_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream_.get()), "timed calls"));
  for (int call = 0; call < 2 * calls; ++call) {
    float ms = 0;
    MK_RETURN_IF_ERROR(
        cuda_status(cudaEventElapsedTime(&ms, events[call].get(), events[call + 1].get()), "time"));
    (is_ours(call) ? ours : cublas).push_back(ms);
  }
  return {};
}

Result<ProductCheck> Bench::check() {
  position_ = sets_.size() - 1;  // the inputs that lie furthest back
  const Set& set = sets_[position_];
  MK_RETURN_IF_ERROR(poison(set.c, stream_.get()));
  MK_RETURN_IF_ERROR(ours());
  return check_product(set.arguments(), shape_, options_.fp32_output, stream_.get());
}

}  // namespace

Result<GemmCudaRow> measure_gemm_cuda(const GemmShape& shape, const GemmCudaOptions& options) {
  Bench bench;
  MK_RETURN_IF_ERROR(bench.prepare(shape, options));
  std::vector<double> ours, cublas;
  MK_RETURN_IF_ERROR(bench.time(2, ours, cublas));  // warms up, and says how long a call takes
  const double each = 1e-3 * (ours.back() + cublas.back());
  const int calls = std::clamp(static_cast<int>(options.seconds / each), 5, options.iterations);
  ours.clear();
  cublas.clear();
  MK_RETURN_IF_ERROR(bench.time(calls, ours, cublas));
  GemmCudaRow row{.shape = shape, .plan = bench.plan(), .iterations = calls};
  row.ms = median(ours);
  row.cublas_ms = median(cublas);
  row.spread = spread(ours);
  if (!options.check) return row;
  const auto check = bench.check();
  if (!check.ok()) return check.status();
  row.check = check.value();
  row.verified = row.check.wrong == 0;
  return row;
}

}  // namespace mkernel::bench

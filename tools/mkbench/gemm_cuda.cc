#include "tools/mkbench/gemm_cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "kernels/cuda/gemm/gemm_sm90.h"
#include "kernels/cuda/memory/error.h"
#include "kernels/cuda/memory/hopper.h"
#include "tools/mkbench/cublas.h"
#include "tools/mkbench/gpu_stream.h"
#include "tools/mkbench/report.h"

namespace mkernel::bench {
namespace {

using kernels::cuda_status;

/// Operands of one call.
struct Set {
  GpuBuffer a, b, c;
  GemmArguments arguments() const { return {a.get(), b.get(), c.get()}; }
};

/// Stream, cuBLAS, the sets that calls go through in turn, and one event per border between calls.
class Bench {
 public:
  Status prepare(const GemmShape& shape, const GemmCudaOptions& options);
  Status ours() { return kernels::gemm_sm90(next().arguments(), shape_, plan_, stream_.get()); }
  Status cublas() { return cublas_->gemm(next().arguments(), shape_); }
  /// `calls` of each side in turn, or graphs of them; times of a call in ms.
  Status time(int calls, std::vector<double>& ours, std::vector<double>& cublas);
  Result<ProductCheck> check();
  const kernels::Sm90LocalPlan& plan() const { return plan_; }

 private:
  const Set& next() { return sets_[position_++ % sets_.size()]; }
  Status choose_plan();
  Status capture();
  Result<Set> make_set(std::uint64_t seed) const;

  GemmShape shape_;
  GemmCudaOptions options_;
  kernels::Sm90LocalPlan plan_;
  GpuStream stream_;
  std::optional<Cublas> cublas_;
  std::vector<Set> sets_;
  std::size_t position_ = 0;
  std::optional<GpuGraph> ours_graph_, cublas_graph_;  ///< a call for every set
};

Result<Set> Bench::make_set(std::uint64_t seed) const {
  const auto m = static_cast<std::uint64_t>(shape_.m), n = static_cast<std::uint64_t>(shape_.n),
             k = static_cast<std::uint64_t>(shape_.k);
  auto a = GpuBuffer::allocate(m * k * 2);
  if (!a.ok()) return a.status();
  auto b = GpuBuffer::allocate(k * n * 2);
  if (!b.ok()) return b.status();
  auto c = GpuBuffer::allocate(m * n * 2);
  if (!c.ok()) return c.status();
  MK_RETURN_IF_ERROR(fill_random(a->get(), shape_.dtype, m * k, 2 * seed, stream_.get()));
  MK_RETURN_IF_ERROR(fill_random(b->get(), shape_.dtype, k * n, 2 * seed + 1, stream_.get()));
  return Result<Set>(Set{std::move(a).value(), std::move(b).value(), std::move(c).value()});
}

Status Bench::choose_plan() {
  auto machine = kernels::hopper_machine("gemm");
  if (!machine.ok()) return machine.status();
  if (options_.skinny) {
    auto skinny = kernels::plan_sm90_skinny(shape_, *machine);
    if (!skinny) {
      return {StatusCode::kInvalidArgument, "gemm: m is " + std::to_string(shape_.m) +
                                                ", the body for few rows takes at most " +
                                                std::to_string(kernels::kSkinnyMostRows)};
    }
    if (options_.split > 0) skinny->split = options_.split;
    plan_ = *skinny;
    return {};
  }
  plan_ = options_.tile ? kernels::plan_sm90(shape_, *machine, *options_.tile, options_.cluster)
                        : kernels::plan_sm90_local(shape_, *machine);
  auto* tiled = std::get_if<kernels::Sm90Plan>(&plan_);
  if (tiled != nullptr && options_.band > 0) tiled->raster = tiled->raster.with_band(options_.band);
  return {};
}

Status Bench::capture() {
  // Loads the kernels of both: not while a graph is captured.
  MK_RETURN_IF_ERROR(ours());
  MK_RETURN_IF_ERROR(cublas());
  MK_RETURN_IF_ERROR(stream_.synchronize());
  const auto graph_of = [&](std::optional<GpuGraph>& graph, const std::function<Status()>& call) -> Status {
    position_ = 0;
    auto captured = GpuGraph::capture(stream_, [&]() -> Status {
      for (std::size_t i = 0; i < sets_.size(); ++i) MK_RETURN_IF_ERROR(call());
      return {};
    });
    if (!captured.ok()) return captured.status();
    graph = std::move(*captured);
    return {};
  };
  MK_RETURN_IF_ERROR(graph_of(ours_graph_, [this] { return ours(); }));
  return graph_of(cublas_graph_, [this] { return cublas(); });
}

Status Bench::prepare(const GemmShape& shape, const GemmCudaOptions& options) {
  shape_ = shape;
  options_ = options;
  int device = 0, l2 = 0;
  MK_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "device"));
  MK_RETURN_IF_ERROR(cuda_status(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device), "L2 size"));
  MK_RETURN_IF_ERROR(choose_plan());

  auto stream = GpuStream::create();
  if (!stream.ok()) return stream.status();
  stream_ = std::move(*stream);
  auto cublas = Cublas::open(stream_.get());
  if (!cublas.ok()) return cublas.status();
  cublas_ = std::move(*cublas);

  // Between two uses of a set, three times the L2 goes by.
  const std::int64_t set_bytes = 2 * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n);
  const std::int64_t count =
      std::clamp<std::int64_t>(3 * static_cast<std::int64_t>(l2) / set_bytes + 1, 2, 64);
  for (std::int64_t i = 0; i < count; ++i) {
    auto set = make_set(static_cast<std::uint64_t>(i) + 1);
    if (!set.ok()) return set.status();
    sets_.push_back(std::move(set).value());
  }
  return options.graph ? capture() : stream_.synchronize();
}

Status Bench::time(int calls, std::vector<double>& ours, std::vector<double>& cublas) {
  // Pairs in the order ours, theirs, theirs, ours: each side follows each as often.
  const auto is_ours = [](int call) { return (call % 4 == 0) || (call % 4 == 3); };
  const auto launch = [&](int call) {
    if (options_.graph) return (is_ours(call) ? ours_graph_ : cublas_graph_)->launch(stream_);
    return is_ours(call) ? this->ours() : this->cublas();
  };
  auto times = stream_.time(2 * calls, launch);
  if (!times.ok()) return times.status();
  const auto each = static_cast<double>(options_.graph ? sets_.size() : 1);
  for (int call = 0; call < 2 * calls; ++call)
    (is_ours(call) ? ours : cublas).push_back((*times)[call] / each);
  return {};
}

Result<ProductCheck> Bench::check() {
  position_ = sets_.size() - 1;  // the inputs that lie furthest back
  const Set& set = sets_[position_];
  MK_RETURN_IF_ERROR(poison(set.c, stream_.get()));
  MK_RETURN_IF_ERROR(ours());
  return check_product(set.arguments(), shape_, stream_.get());
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
  GemmCudaRow row{.shape = shape, .plan = bench.plan(), .graph = options.graph, .iterations = calls};
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

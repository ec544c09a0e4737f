#include "tools/mkbench/op_cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "kernels/cuda/gemm/gemm_sm90.h"
#include "kernels/cuda/memory/hopper.h"
#include "tools/mkbench/cublas.h"
#include "tools/mkbench/gpu_gemm_case.h"
#include "tools/mkbench/gpu_stream.h"
#include "tools/mkbench/nccl.h"
#include "tools/mkbench/report.h"
#include "tools/mkbench/timeline.h"
#include "tools/mkbench/workload.h"

namespace mkernel::bench {
namespace {

/// Timed launches of one round at most: what a rank tells the others fits one exchange.
constexpr int kMostPerRound = 8;

/// Launches behind the first one of an operation that it is compared with, at least.
constexpr int kLaterLaunches = 8;

/// One thing that is timed: a graph per set.
struct Side {
  std::vector<GpuGraph> graphs;
  std::vector<double> milliseconds;  ///< per iteration, of the slowest rank
};

/// What every rank tells the others of one set after a round.
struct Outcome {
  ProductCheck check;
  std::uint64_t digest = 0;
};

class Measurement {
 public:
  Measurement(Group& group, OpCudaOptions options) : group_(group), options_(std::move(options)) {}

  Status prepare(OpKind kind, const GemmShape& shape);
  /// Before any round: what the first launch of an operation costs.
  Status first_launches(Row& row);
  Status round(Row& row);
  /// One more launch, with a timeline of all ranks in `path`; not timed, verified.
  Status trace(const std::string& path, Row& row);
  int per_round() const { return case_->sets() - 1; }
  void finish(Row& row) const;

 private:
  Status take_share();
  Status capture_all();
  Status capture(Side& side, const std::function<Status(int)>& queue);
  Status prepare_products();
  Status prepare_cublas();
  Status prepare_own_product();
  Status prepare_nccl();
  GemmArguments product_arguments(int set) const;
  Status cublas_product(int set) const { return cublas_->gemm(product_arguments(set), case_->shape()); }
  Status product_and_nccl(int set) const;
  Status time(Side& side);
  Status verify(Row& row);
  template <typename T>
  Result<std::vector<T>> from_all(const T& mine);

  Group& group_;
  OpCudaOptions options_;
  GpuStream stream_;
  std::optional<Gemm> op_;
  std::optional<GpuGemmCase> case_;
  std::optional<Cublas> cublas_;
  GpuBuffer whole_;  ///< the baselines': gathered a, or this rank's whole product
  GpuBuffer out_;    ///< the baselines' c
  Side ours_;
  std::optional<Side> gemm_, product_, nccl_;
  std::uint64_t iteration_ = 0;
};

/// As it is recorded; 0 stands for what was not asked for.
nlohmann::json number_or_null(int value) {
  return value == 0 ? nlohmann::json() : nlohmann::json(value);
}

/// So many that three times the L2 goes by between two uses of a set; one more than are timed.
int count_sets(const GemmShape& shape, std::uint32_t world, int iterations) {
  int device = 0, l2 = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device);
  const std::int64_t bytes = 2 * (shape.m * shape.k / world + shape.k * shape.n + shape.m * shape.n / world);
  const auto wanted = static_cast<int>(std::min<std::int64_t>(3 * std::int64_t{l2} / bytes, kMostPerRound));
  return std::min(std::max(wanted, 2), iterations) + 1;
}

/// The part of a shared GPU that the plan may use.
Status Measurement::take_share() {
  if (options_.share == 0 || options_.plan.sms != 0) return {};
  auto machine = kernels::hopper_machine("mkbench op");
  if (!machine.ok()) return machine.status();
  options_.plan.sms = share_of_gpu(machine->sms, options_.share);
  if (options_.plan.sms > 0) return {};
  return {StatusCode::kInvalidArgument, "share = " + std::to_string(options_.share) + ", but this GPU has " +
                                            std::to_string(machine->sms) + " multiprocessors"};
}

Status Measurement::prepare(OpKind kind, const GemmShape& shape) {
  MK_RETURN_IF_ERROR(use_gpu(options_.device));
  MK_RETURN_IF_ERROR(take_share());
  auto op = kind == OpKind::kAgGemm   ? group_.ag_gemm(shape, Executor::kCuda, options_.plan)
            : kind == OpKind::kGemmRs ? group_.gemm_rs(shape, Executor::kCuda, options_.plan)
                                      : group_.gemm_ar(shape, Executor::kCuda, options_.plan);
  if (!op.ok()) return op.status();
  op_ = std::move(*op);
  auto stream = GpuStream::create();
  if (!stream.ok()) return stream.status();
  stream_ = std::move(*stream);
  auto made = GpuGemmCase::make(kind, shape, group_.world_size(), group_.world_size() / group_.node_count(),
                                group_.rank(), count_sets(shape, group_.world_size(), options_.iterations),
                                stream_.get());
  if (!made.ok()) return made.status();
  case_ = std::move(*made);
  return {};
}

/// Launches one at a time, each from a barrier until the stream is done, as no graph has been made yet.
Status Measurement::first_launches(Row& row) {
  for (int set = 0; set < case_->sets(); ++set) MK_RETURN_IF_ERROR(case_->fill(set, iteration_++));
  MK_RETURN_IF_ERROR(stream_.synchronize());
  const Activity awake = group_.keep_active();
  std::vector<double> slowest;
  while (slowest.size() <= kLaterLaunches) {
    for (int set = 0; set < case_->sets(); ++set) {
      MK_RETURN_IF_ERROR(group_.barrier());
      const auto begin = std::chrono::steady_clock::now();
      MK_RETURN_IF_ERROR(op_->enqueue(case_->arguments(set), stream_.get(), options_.executor));
      const Status done = stream_.synchronize();
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
      MK_RETURN_IF_ERROR(op_->status());
      MK_RETURN_IF_ERROR(done);
      auto all = from_all(took.count());
      if (!all.ok()) return all.status();
      slowest.push_back(*std::max_element(all->begin(), all->end()));
    }
  }
  row.first_ms = slowest.front();
  row.single_ms = median({slowest.begin() + 1, slowest.end()});
  MK_RETURN_IF_ERROR(verify(row));
  return capture_all();
}

Status Measurement::capture_all() {
  const GemmShape& shape = case_->shape();
  MK_RETURN_IF_ERROR(capture(
      ours_, [&](int set) { return op_->enqueue(case_->arguments(set), stream_.get(), options_.executor); }));
  const bool divides = shape.m % group_.world_size() == 0;
  const bool with_nccl = options_.nccl != nullptr && divides;
  if (options_.gemm || options_.product || with_nccl) MK_RETURN_IF_ERROR(prepare_products());
  if (options_.gemm || with_nccl) MK_RETURN_IF_ERROR(prepare_cublas());
  if (options_.product) MK_RETURN_IF_ERROR(prepare_own_product());
  return with_nccl ? prepare_nccl() : Status();
}

Status Measurement::capture(Side& side, const std::function<Status(int)>& queue) {
  for (int set = 0; set < case_->sets(); ++set) {
    auto graph = GpuGraph::capture(stream_, [&] { return queue(set); });
    if (!graph.ok()) return graph.status();
    side.graphs.push_back(std::move(*graph));
  }
  return {};
}

/// Memory of the products alone.
Status Measurement::prepare_products() {
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
  return fill_random(whole_.get(), shape.dtype, whole, 1, stream_.get());
}

Status Measurement::prepare_cublas() {
  auto cublas = Cublas::open(stream_.get());
  if (!cublas.ok()) return cublas.status();
  cublas_ = std::move(*cublas);
  if (options_.plan.sms > 0) MK_RETURN_IF_ERROR(cublas_->target_sms(options_.plan.sms));
  MK_RETURN_IF_ERROR(cublas_product(0));  // loads its kernels: not while a graph is captured
  MK_RETURN_IF_ERROR(stream_.synchronize());
  if (!options_.gemm) return {};
  return capture(gemm_.emplace(), [&](int set) { return cublas_product(set); });
}

Status Measurement::prepare_own_product() {
  auto machine = kernels::hopper_machine("mkbench op", options_.plan.machine, options_.plan.sms);
  if (!machine.ok()) return machine.status();
  const kernels::Sm90Plan plan = kernels::plan_sm90_any_cluster(case_->shape(), *machine);
  const auto queue = [&](int set) {
    return kernels::gemm_sm90(product_arguments(set), case_->shape(), plan, stream_.get());
  };
  MK_RETURN_IF_ERROR(queue(0));  // loads its kernel: not while a graph is captured
  MK_RETURN_IF_ERROR(stream_.synchronize());
  return capture(product_.emplace(), queue);
}

/// The product of a set as a baseline computes it, alone.
GemmArguments Measurement::product_arguments(int set) const {
  GemmArguments at = case_->arguments(set);
  const bool gathers = case_->kind() == OpKind::kAgGemm;
  if (gathers) at.a = whole_.get();
  at.c = gathers ? out_.get() : whole_.get();
  return at;
}

Status Measurement::prepare_nccl() {
  MK_RETURN_IF_ERROR(product_and_nccl(0));  // connects the ranks
  MK_RETURN_IF_ERROR(stream_.synchronize());
  return capture(nccl_.emplace(), [&](int set) { return product_and_nccl(set); });
}

Status Measurement::product_and_nccl(int set) const {
  const GemmShape& shape = case_->shape();
  const auto product_elements = static_cast<std::uint64_t>(shape.m * shape.n);
  if (case_->kind() == OpKind::kAgGemm) {
    const auto own_elements = static_cast<std::uint64_t>(shape.m * shape.k) / group_.world_size();
    MK_RETURN_IF_ERROR(options_.nccl->all_gather(case_->arguments(set).a, whole_.get(), own_elements,
                                                 shape.dtype, stream_.get()));
    return cublas_product(set);
  }
  MK_RETURN_IF_ERROR(cublas_product(set));
  if (case_->kind() == OpKind::kGemmRs) {
    return options_.nccl->reduce_scatter(whole_.get(), out_.get(), product_elements / group_.world_size(),
                                         shape.dtype, stream_.get());
  }
  return options_.nccl->all_reduce(whole_.get(), out_.get(), product_elements, shape.dtype, stream_.get());
}

template <typename T>
Result<std::vector<T>> Measurement::from_all(const T& mine) {
  auto all = group_.exchange(std::as_bytes(std::span(&mine, 1)));
  if (!all.ok()) return all.status();
  std::vector<T> values(all->size());
  for (std::size_t r = 0; r < all->size(); ++r) std::memcpy(&values[r], (*all)[r].data(), sizeof(T));
  return values;
}

/// The first launch is not timed: it brings the ranks together, which leave the barrier at their own pace.
Status Measurement::time(Side& side) {
  MK_RETURN_IF_ERROR(group_.barrier());
  const int last = per_round();
  MK_RETURN_IF_ERROR(side.graphs[last].launch(stream_));
  auto times = stream_.time(last, [&](int set) { return side.graphs[set].launch(stream_); });
  if (!times.ok()) return times.status();
  std::array<double, kMostPerRound> mine{};
  std::copy(times->begin(), times->end(), mine.begin());
  auto all = from_all(mine);
  if (!all.ok()) return all.status();
  for (int i = 0; i < last; ++i) {
    double slowest = 0;
    for (const auto& theirs : *all) slowest = std::max(slowest, theirs[i]);
    side.milliseconds.push_back(slowest);
  }
  return {};
}

Status Measurement::verify(Row& row) {
  for (int set = 0; set < case_->sets(); ++set) {
    auto check = case_->verify(set);
    if (!check.ok()) return check.status();
    Outcome mine{*check};
    if (case_->kind() == OpKind::kGemmAr) {
      auto digest = case_->digest(set);
      if (!digest.ok()) return digest.status();
      mine.digest = *digest;
    }
    auto all = from_all(mine);
    if (!all.ok()) return all.status();
    for (const Outcome& theirs : *all) {
      row.elements += theirs.check.elements;
      row.wrong += theirs.check.wrong;
      if (theirs.digest != (*all)[0].digest) row.wrong += theirs.check.elements;  // the ranks disagree
      if (!(theirs.check.relative_error <= row.max_rel_err)) row.max_rel_err = theirs.check.relative_error;
    }
  }
  return {};
}

Status Measurement::round(Row& row) {
  for (int set = 0; set < case_->sets(); ++set) MK_RETURN_IF_ERROR(case_->fill(set, iteration_++));
  MK_RETURN_IF_ERROR(stream_.synchronize());
  const Activity awake = group_.keep_active();  // replays that put cannot wake the daemon
  const Status timed = time(ours_);
  MK_RETURN_IF_ERROR(op_->status());  // says who was waited for; `timed` only that the group is over
  MK_RETURN_IF_ERROR(timed);
  if (gemm_) MK_RETURN_IF_ERROR(time(*gemm_));
  if (product_) MK_RETURN_IF_ERROR(time(*product_));
  if (nccl_) MK_RETURN_IF_ERROR(time(*nccl_));
  return verify(row);
}

/// The last launch of a row of them that brings the ranks together; the first one makes room for the
/// timeline.
Status Measurement::trace(const std::string& path, Row& row) {
  for (int set = 0; set < case_->sets(); ++set) MK_RETURN_IF_ERROR(case_->fill(set, iteration_++));
  MK_RETURN_IF_ERROR(stream_.synchronize());
  MK_RETURN_IF_ERROR(group_.barrier());
  const Activity awake = group_.keep_active();  // replays that put cannot wake the daemon
  Trace timeline;
  ExecutorOptions traced = options_.executor;
  traced.trace = &timeline;
  MK_RETURN_IF_ERROR(op_->enqueue(case_->arguments(0), stream_.get(), traced));
  for (int set = 1; set < case_->sets(); ++set) MK_RETURN_IF_ERROR(ours_.graphs[set].launch(stream_));
  MK_RETURN_IF_ERROR(op_->enqueue(case_->arguments(0), stream_.get(), traced));
  MK_RETURN_IF_ERROR(stream_.synchronize());
  MK_RETURN_IF_ERROR(op_->status());
  if (timeline.lost() > 0)
    std::cerr << "mkbench: " << timeline.lost() << " events did not fit the timeline\n";
  MK_RETURN_IF_ERROR(verify(row));
  return write_timeline(group_, timeline.take(), path);
}

void Measurement::finish(Row& row) const {
  row.milliseconds = ours_.milliseconds;
  row.wire_bytes = op_->wire_bytes();
  row.shape["share"] = number_or_null(options_.share);
  row.shape["sms"] = number_or_null(options_.plan.sms);
  if (gemm_) row.gemm_ms = median(gemm_->milliseconds);
  if (product_) row.product_ms = median(product_->milliseconds);
  if (nccl_) row.cublas_nccl_ms = median(nccl_->milliseconds);
}

}  // namespace

Result<Row> measure_op_cuda(Group& group, OpKind kind, const GemmShape& shape, const OpCudaOptions& options) {
  Measurement measurement(group, options);
  MK_RETURN_IF_ERROR(measurement.prepare(kind, shape));
  Row row;
  MK_RETURN_IF_ERROR(measurement.first_launches(row));
  row.shape = {{"op", to_string(kind)},
               {"executor", "cuda"},
               {"m", shape.m},
               {"n", shape.n},
               {"k", shape.k},
               {"dtype", to_string(shape.dtype)},
               {"b_layout", shape.b_layout == Layout::kRowMajor ? "row-major" : "column-major"}};
  row.shape_text =
      std::to_string(shape.m) + " x " + std::to_string(shape.n) + " x " + std::to_string(shape.k);
  for (int done = 0; done < options.iterations; done += measurement.per_round())
    MK_RETURN_IF_ERROR(measurement.round(row));
  measurement.finish(row);
  if (!options.trace.empty()) MK_RETURN_IF_ERROR(measurement.trace(options.trace, row));
  return row;
}

}  // namespace mkernel::bench

#include "tools/mkbench/op.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "tools/mkbench/nccl.h"
#include "tools/mkbench/op_cuda.h"
#include "tools/mkbench/parse_shape.h"
#include "tools/mkbench/report.h"
#include "tools/mkbench/row.h"
#include "tools/mkbench/timeline.h"
#include "tools/mkbench/torch_fused.h"
#include "tools/mkbench/workload.h"
#include "tools/mkrun/launcher_env.h"

namespace mkernel::bench {
namespace {

struct OpOptions {
  std::string op;
  std::string preset;
  std::string daemon = "/run/mkernel/mkerneld.sock";
  std::string group = "mkbench";
  std::optional<std::uint32_t> world_size, rank;
  std::int64_t m = 2048, n = 512, k = 2048;
  std::int64_t batch = 1, sequence = 4096, heads = 8, kv_heads = 8, head_dim = 128;
  std::int64_t tokens = 512, hidden = 1024, intermediate = 512, experts = 16, topk = 4, capacity = 0;
  bool causal = false, column_major = false;
  DataType dtype = DataType::kBf16;
  Executor executor = Executor::kCpu;
  std::optional<int> device;
  std::vector<std::string> shapes, baselines;
  std::string torch_driver;
  std::optional<double> nic_gbps;
  GemmPlanOptions plan;  ///< of the cuda executor
  int share = 0;
  int iterations = 3;
  int threads = 0;
  double deadline = 30;
  double join_timeout = 60;
  std::string json, trace;

  bool compares_with(const char* baseline) const {
    return std::find(baselines.begin(), baselines.end(), baseline) != baselines.end();
  }
  ExecutorOptions executor_options() const {
    return {std::chrono::milliseconds(static_cast<std::int64_t>(deadline * 1000)), threads};
  }
};

using MakeWorkload = std::function<Result<std::unique_ptr<Workload>>(Group&)>;

/// What every rank tells the others after an iteration.
struct Outcome {
  double milliseconds = 0;
  std::uint64_t wire_bytes = 0;
  Verdict verdict;
};

MakeWorkload gemm(OpKind kind, const GemmShape& shape) {
  return [=](Group& group) { return make_gemm_workload(group, kind, shape); };
}
MakeWorkload moe(const MoeShape& shape) {
  return [=](Group& group) { return make_moe_workload(group, shape); };
}
MakeWorkload attention(const AttentionShape& shape) {
  return [=](Group& group) { return make_attention_workload(group, shape); };
}

/// Layer sizes of a small model, all five operations: what tools/demo runs.
std::vector<MakeWorkload> demo_preset() {
  return {
      gemm(OpKind::kAgGemm, {.m = 4096, .n = 1024, .k = 4096}),
      gemm(OpKind::kGemmRs, {.m = 4096, .n = 4096, .k = 1024}),
      gemm(OpKind::kGemmAr, {.m = 2048, .n = 4096, .k = 1024}),
      moe({.max_tokens = 512, .hidden = 1024, .n = 1024, .intermediate = 512, .experts = 16, .topk = 4}),
      attention({.batch = 1, .sequence = 3000, .heads = 8, .kv_heads = 2, .head_dim = 128, .causal = true})};
}

/// The operation when it is one of the three around a GEMM.
std::optional<OpKind> gemm_kind(const OpOptions& o) {
  for (const OpKind kind : {OpKind::kAgGemm, OpKind::kGemmRs, OpKind::kGemmAr}) {
    if (o.op == to_string(kind)) return kind;
  }
  return {};
}

/// Those of --shape, else --m, --n, --k.
Result<std::vector<GemmShape>> gemm_shapes(const OpOptions& o) {
  std::vector<GemmShape> shapes;
  if (o.shapes.empty()) shapes.push_back({o.m, o.n, o.k});
  for (const std::string& text : o.shapes) {
    auto parsed = parse_shape(text);
    if (!parsed.ok()) return parsed.status();
    shapes.push_back(*parsed);
  }
  for (GemmShape& shape : shapes) {
    shape.dtype = o.dtype;
    shape.b_layout = o.column_major ? Layout::kColumnMajor : Layout::kRowMajor;
  }
  return shapes;
}

Result<std::vector<MakeWorkload>> chosen(const OpOptions& o) {
  if (o.preset == "demo") return demo_preset();
  if (const auto kind = gemm_kind(o)) {
    auto shapes = gemm_shapes(o);
    if (!shapes.ok()) return shapes.status();
    std::vector<MakeWorkload> made;
    for (const GemmShape& shape : *shapes) made.push_back(gemm(*kind, shape));
    return made;
  }
  if (o.op == "moe_dispatch_gemm") {
    return std::vector{
        moe({o.tokens, o.hidden, o.n, o.intermediate, o.experts, o.topk, o.dtype, o.capacity})};
  }
  return std::vector{attention({o.batch, o.sequence, o.heads, o.kv_heads, o.head_dim, o.causal, 0, o.dtype})};
}

/// One timed and verified iteration; merges what all ranks saw into `row`.
Status run_iteration(Group& group, Workload& work, std::uint64_t iteration, const ExecutorOptions& options,
                     Row& row) {
  work.prepare(iteration);
  MK_RETURN_IF_ERROR(group.barrier());
  const auto begin = std::chrono::steady_clock::now();
  auto pending = work.launch(options);
  if (!pending.ok()) return pending.status();
  MK_RETURN_IF_ERROR(pending->wait());
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;

  const Outcome mine{took.count(), work.wire_bytes(), work.verify()};
  auto all = group.exchange(std::as_bytes(std::span(&mine, 1)));
  if (!all.ok()) return all.status();
  double slowest = 0;
  row.wire_bytes = 0;
  for (const auto& bytes : *all) {
    Outcome theirs;
    std::memcpy(&theirs, bytes.data(), sizeof(theirs));
    slowest = std::max(slowest, theirs.milliseconds);
    row.wire_bytes += theirs.wire_bytes;
    row.elements += theirs.verdict.elements;
    row.wrong += theirs.verdict.wrong;
    if (!(theirs.verdict.max_rel_err <= row.max_rel_err)) row.max_rel_err = theirs.verdict.max_rel_err;
  }
  row.milliseconds.push_back(slowest);
  return {};
}

Result<Row> run_workload(Group& group, const MakeWorkload& make, const OpOptions& o) {
  auto work = make(group);
  if (!work.ok()) return work.status();
  const ExecutorOptions options = o.executor_options();
  Row row;
  row.shape = (*work)->shape();
  row.shape["executor"] = "cpu";
  row.shape_text = (*work)->shape_text();
  Row warm_up;
  MK_RETURN_IF_ERROR(run_iteration(group, **work, 0, options, warm_up));
  row.elements = warm_up.elements;
  row.wrong = warm_up.wrong;
  row.first_ms = warm_up.milliseconds.front();
  for (int i = 1; i <= o.iterations; ++i) {
    MK_RETURN_IF_ERROR(run_iteration(group, **work, static_cast<std::uint64_t>(i), options, row));
  }
  if (o.trace.empty()) return row;
  Trace trace;
  ExecutorOptions traced = options;
  traced.trace = &trace;
  Row untimed;
  MK_RETURN_IF_ERROR(
      run_iteration(group, **work, static_cast<std::uint64_t>(o.iterations) + 1, traced, untimed));
  MK_RETURN_IF_ERROR(write_timeline(group, trace.take(), o.trace));
  return row;
}

Result<std::vector<Row>> run_on_cpu(Group& group, const OpOptions& o) {
  auto workloads = chosen(o);
  if (!workloads.ok()) return workloads.status();
  std::vector<Row> rows;
  for (const MakeWorkload& make : *workloads) {
    auto row = run_workload(group, make, o);
    if (!row.ok()) return row.status();
    if (group.rank() == 0) std::cerr << row->shape["op"].get<std::string>() << " done\n";
    rows.push_back(std::move(*row));
  }
  return rows;
}

Result<std::vector<Row>> run_on_gpu(Group& group, const OpOptions& o) {
  const auto kind = gemm_kind(o);
  if (!kind) {
    return Status(StatusCode::kUnimplemented, (o.preset.empty() ? o.op : "preset " + o.preset) +
                                                  ": the cuda executor does not have this operation yet");
  }
  auto shapes = gemm_shapes(o);
  if (!shapes.ok()) return shapes.status();
  OpCudaOptions options{.device = *o.device, .iterations = o.iterations, .executor = o.executor_options()};
  options.share = o.share;
  options.gemm = o.compares_with("gemm");
  options.product = o.compares_with("product");
  options.trace = o.trace;
  options.plan = o.plan;
  if (o.nic_gbps) options.plan.nic_gbytes = *o.nic_gbps / 8;
  std::optional<Nccl> nccl;
  if (o.compares_with("nccl")) {
    auto joined = Nccl::join(group, *o.device);
    if (!joined.ok()) return joined.status();
    options.nccl = &nccl.emplace(std::move(*joined));
  }
  std::vector<Row> rows;
  for (const GemmShape& shape : *shapes) {
    auto row = measure_op_cuda(group, *kind, shape, options);
    if (!row.ok()) return row.status();
    if (group.rank() == 0) std::cerr << row->shape_text << " done\n";
    rows.push_back(std::move(*row));
  }
  nccl.reset();
  if (!o.compares_with("torch")) return rows;
  const Status torch = measure_torch_fused(
      group, {.driver = o.torch_driver, .device = *o.device, .iterations = o.iterations}, rows);
  if (!torch.ok()) return torch;
  return rows;
}

/// The cpu executor's rows under "op", as those of the other commands; the cuda executor's as a list.
Status record_rows(const OpOptions& o, const nlohmann::json& json) {
  if (o.executor == Executor::kCuda) return append_rows(o.json, json);
  return record(o.json, "op", json) ? Status() : Status(StatusCode::kInternal, "results were not recorded");
}

Status run(OpOptions o) {
  std::uint32_t world = o.world_size.value_or(0), rank = o.rank.value_or(0);
  std::optional<std::uint32_t> local_rank;
  if (!o.world_size || !o.rank) {
    auto launcher = mkrun::detect_launcher();
    if (!launcher.ok()) return launcher.status();
    if (launcher->name.empty()) {
      return {StatusCode::kInvalidArgument,
              "rank and world size: give --rank and --world-size, or RANK and WORLD_SIZE as torchrun does"};
    }
    world = o.world_size.value_or(launcher->world_size);
    rank = o.rank.value_or(launcher->rank);
    local_rank = launcher->local_rank;
  }
  SessionOptions options{.socket = o.daemon, .name = "mkbench"};
  if (o.executor == Executor::kCuda) {
    if (!o.device) o.device = static_cast<int>(local_rank.value_or(rank));
    options.device = *o.device;
  }
  auto session = Session::connect(options);
  if (!session.ok()) return session.status();
  auto group =
      session->join({.name = o.group,
                     .world_size = world,
                     .rank = rank,
                     .timeout = std::chrono::milliseconds(static_cast<std::int64_t>(o.join_timeout * 1000))});
  if (!group.ok()) return group.status();

  auto rows = o.executor == Executor::kCuda ? run_on_gpu(*group, o) : run_on_cpu(*group, o);
  if (!rows.ok()) return rows.status();
  MK_RETURN_IF_ERROR(group->barrier());
  if (rank == 0) print_rows(*rows, *group);
  nlohmann::json json = nlohmann::json::array();
  std::uint64_t wrong = 0;
  for (const Row& row : *rows) {
    json.push_back(to_json(row, *group, o.nic_gbps));
    wrong += row.wrong;
  }
  if (rank == 0 && !o.json.empty()) MK_RETURN_IF_ERROR(record_rows(o, json));
  if (wrong > 0) return {StatusCode::kDataLoss, std::to_string(wrong) + " output elements are wrong"};
  return {};
}

void add_group_options(CLI::App* op, OpOptions* o) {
  op->add_option("operation", o->op)
      ->check(CLI::IsMember({"ag_gemm", "gemm_rs", "gemm_ar", "moe_dispatch_gemm", "ring_attention"}));
  op->add_option("--preset", o->preset, "a list of operations and shapes instead of one")
      ->check(CLI::IsMember({"demo"}));
  op->add_option("--daemon", o->daemon, "session socket of this node's daemon")->capture_default_str();
  op->add_option("--group", o->group, "the same on every rank")->capture_default_str();
  op->add_option("--world-size", o->world_size);
  op->add_option("--rank", o->rank);
  op->add_option("--join-timeout", o->join_timeout, "seconds to wait for the other ranks")
      ->capture_default_str();
}

void add_shape_options(CLI::App* op, OpOptions* o) {
  op->add_option("--m", o->m, "rows of the product")->capture_default_str();
  op->add_option("--n", o->n, "columns of the product; of the layer's output for moe_dispatch_gemm")
      ->capture_default_str();
  op->add_option("--k", o->k, "inner dimension on each rank")->capture_default_str();
  op->add_option("--shape", o->shapes, "MxNxK instead of --m, --n, --k; repeatable");
  op->add_flag("--column-major", o->column_major, "b as [n, k]");
  op->add_option("--batch", o->batch)->capture_default_str();
  op->add_option("--sequence", o->sequence, "positions of all ranks together")->capture_default_str();
  op->add_option("--heads", o->heads)->capture_default_str();
  op->add_option("--kv-heads", o->kv_heads)->capture_default_str();
  op->add_option("--head-dim", o->head_dim)->capture_default_str();
  op->add_flag("--causal", o->causal);
  op->add_option("--tokens", o->tokens, "per rank")->capture_default_str();
  op->add_option("--hidden", o->hidden)->capture_default_str();
  op->add_option("--intermediate", o->intermediate, "0: one product per expert")->capture_default_str();
  op->add_option("--experts", o->experts)->capture_default_str();
  op->add_option("--topk", o->topk)->capture_default_str();
  op->add_option("--capacity", o->capacity, "rows that a rank takes for its experts; 0: as many as can come")
      ->capture_default_str();
  op->add_option("--dtype", o->dtype)
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, DataType>{{"bf16", DataType::kBf16}, {"f16", DataType::kF16}}));
}

void add_executor_options(CLI::App* op, OpOptions* o) {
  op->add_option("--executor", o->executor, "cpu, or cuda: on a GPU, the operations around a GEMM")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Executor>{{"cpu", Executor::kCpu}, {"cuda", Executor::kCuda}}));
  op->add_option("--device", o->device,
                 "GPU of this rank on the cuda executor; default: the launcher's local rank, or the rank")
      ->check(CLI::Range(0, 1023));
  op->add_option(
        "--baseline", o->baselines,
        "cuda executor: measure in the same run, in turns, the product alone (gemm: cuBLAS, product: "
        "the GEMM body of the operations), cuBLAS and NCCL, torch's fused operations; repeatable")
      ->check(CLI::IsMember({"gemm", "product", "nccl", "torch"}));
  op->add_option("--torch-driver", o->torch_driver,
                 "torch_fused.py, for --baseline torch; needs python3 and torch")
      ->check(CLI::ExistingFile);
  op->add_option(
      "--nic-gbps", o->nic_gbps,
      "gigabits per second of a rank's NIC: recorded beside the rows, and what the cuda executor plans with");
  op->add_option("--comm-ctas", o->plan.comm_ctas,
                 "with --executor cuda: CTAs that compute nothing but push or sum; 0: the plan's choice")
      ->capture_default_str();
  op->add_option("--sms", o->plan.sms, "with --executor cuda: multiprocessors at most; 0: all")
      ->capture_default_str();
  op->add_option("--share", o->share,
                 "with --executor cuda: ranks that run on this rank's GPU at the same time (under MPS); each "
                 "takes its part of the multiprocessors where --sms does not say how many")
      ->check(CLI::Range(1, 64));
  op->add_option("--machine", o->plan.machine,
                 "with --executor cuda: the machine whose rates the plan assumes, H200, H100 or H20; "
                 "by the name of the device where it is not said");
  op->add_option("--threads", o->threads, "compute threads of this rank; 0 = a fair share")
      ->capture_default_str();
}

void add_run_options(CLI::App* op, OpOptions* o) {
  op->add_option("--iterations", o->iterations, "timed and verified, after one to warm up")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  op->add_option("--deadline", o->deadline, "seconds of every wait inside the operation")
      ->capture_default_str();
  op->add_option("--trace", o->trace,
                 "rank 0 writes the timeline of one more launch on all ranks for Perfetto: every role and "
                 "what it waited for; on the cuda executor what every warp of every CTA worked at, too");
  op->add_option("--json", o->json, "rank 0 records its rows in this file");
}

}  // namespace

void add_op(CLI::App& app, int& status) {
  auto o = std::make_shared<OpOptions>();
  CLI::App* op = app.add_subcommand("op", "time and verify an operation; run one process per rank");
  add_group_options(op, o.get());
  add_shape_options(op, o.get());
  add_executor_options(op, o.get());
  add_run_options(op, o.get());
  op->callback([o, &status] {
    if (o->op.empty() == o->preset.empty())
      throw CLI::ValidationError("op", "give an operation or --preset, not both");
    if (!o->baselines.empty() && o->executor != Executor::kCuda)
      throw CLI::ValidationError("--baseline", "only with --executor cuda");
    if (!o->trace.empty() && (!o->preset.empty() || o->shapes.size() > 1))
      throw CLI::ValidationError("--trace", "one operation of one shape");
    if (o->compares_with("torch") && o->torch_driver.empty())
      throw CLI::ValidationError("--baseline torch", "where is torch_fused.py? Give --torch-driver");
    const Status outcome = run(*o);
    if (outcome.ok()) return;
    std::cerr << "mkbench: " << outcome.to_string() << "\n";
    status = 1;
  });
}

}  // namespace mkernel::bench

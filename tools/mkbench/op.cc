#include "tools/mkbench/op.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "tools/mkbench/nccl.h"
#include "tools/mkbench/op_cuda.h"
#include "tools/mkbench/op_options.h"
#include "tools/mkbench/parse_shape.h"
#include "tools/mkbench/report.h"
#include "tools/mkbench/row.h"
#include "tools/mkbench/timeline.h"
#include "tools/mkbench/torch_fused.h"
#include "tools/mkbench/workload.h"
#include "tools/mkrun/launcher_env.h"

namespace mkernel::bench {
namespace {

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
MakeWorkload attention(OpKind kind, const AttentionShape& shape) {
  return [=](Group& group) { return make_attention_workload(group, kind, shape); };
}
MakeWorkload backward(OpKind kind, const AttentionShape& shape) {
  return [=](Group& group) { return make_backward_workload(group, kind, shape); };
}

/// Layer sizes of a small model, all five operations: what tools/demo runs.
std::vector<MakeWorkload> demo_preset() {
  return {
      gemm(OpKind::kAgGemm, {.m = 4096, .n = 1024, .k = 4096}),
      gemm(OpKind::kGemmRs, {.m = 4096, .n = 4096, .k = 1024}),
      gemm(OpKind::kGemmAr, {.m = 2048, .n = 4096, .k = 1024}),
      moe({.max_tokens = 512, .hidden = 1024, .n = 1024, .intermediate = 512, .experts = 16, .topk = 4}),
      attention(OpKind::kRingAttention,
                {.batch = 1, .sequence = 3000, .heads = 8, .kv_heads = 2, .head_dim = 128, .causal = true})};
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

MoeShape moe_shape(const OpOptions& o) {
  return {.max_tokens = o.tokens,
          .hidden = o.hidden,
          .n = o.n,
          .intermediate = o.intermediate,
          .experts = o.experts,
          .topk = o.topk,
          .dtype = o.dtype,
          .capacity = o.capacity,
          .shared_intermediate = o.shared_intermediate};
}

AttentionShape attention_shape(const OpOptions& o) {
  AttentionShape shape{o.batch, o.sequence, o.heads, o.kv_heads, o.head_dim, o.causal, 0, o.dtype};
  if (o.cu_seqlens.empty()) return shape;
  shape.batch = 1;
  shape.sequence = o.cu_seqlens.back();
  shape.max_sequences = static_cast<std::int64_t>(o.cu_seqlens.size()) - 1;
  shape.window_left = o.window_left;
  shape.window_right = o.window_right;
  return shape;
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
  if (o.op == to_string(OpKind::kMoeDispatchGemm)) return std::vector{moe(moe_shape(o))};
  for (const OpKind kind : {OpKind::kAttentionBackward, OpKind::kRingAttentionBackward})
    if (o.op == to_string(kind)) return std::vector{backward(kind, attention_shape(o))};
  const bool alone = o.op == to_string(OpKind::kAttention);
  return std::vector{attention(alone ? OpKind::kAttention : OpKind::kRingAttention, attention_shape(o))};
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

OpCudaOptions cuda_options(const OpOptions& o) {
  OpCudaOptions options{.device = *o.device, .iterations = o.iterations, .executor = o.executor_options()};
  options.share = o.share;
  options.gemm = o.compares_with("gemm");
  options.product = o.compares_with("product");
  options.trace = o.trace;
  options.plan = o.plan;
  if (o.nic_gbps) options.plan.nic_gbytes = *o.nic_gbps / 8;
  return options;
}

Result<std::vector<Row>> run_gemm_on_gpu(Group& group, OpKind kind, const OpOptions& o) {
  auto shapes = gemm_shapes(o);
  if (!shapes.ok()) return shapes.status();
  OpCudaOptions options = cuda_options(o);
  std::optional<Nccl> nccl;
  if (o.compares_with("nccl")) {
    auto joined = Nccl::join(group, *o.device);
    if (!joined.ok()) return joined.status();
    options.nccl = &nccl.emplace(std::move(*joined));
  }
  std::vector<Row> rows;
  for (const GemmShape& shape : *shapes) {
    auto row = measure_op_cuda(group, kind, shape, options);
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

Result<std::vector<Row>> run_on_gpu(Group& group, const OpOptions& o) {
  if (const auto kind = gemm_kind(o)) return run_gemm_on_gpu(group, *kind, o);
  if (o.op == to_string(OpKind::kMoeDispatchGemm)) {
    MoeShape shape = moe_shape(o);
    shape.w_layout = o.column_major ? Layout::kColumnMajor : Layout::kRowMajor;
    auto row = measure_moe_cuda(group, shape, cuda_options(o));
    if (!row.ok()) return row.status();
    return std::vector{std::move(*row)};
  }
  for (const OpKind kind : {OpKind::kAttentionBackward, OpKind::kRingAttentionBackward}) {
    if (o.op != to_string(kind)) continue;
    auto row = o.cu_seqlens.empty()
                   ? measure_backward_cuda(group, kind, attention_shape(o), cuda_options(o))
                   : measure_varlen_cuda(group, kind, attention_shape(o), o.cu_seqlens, cuda_options(o));
    if (!row.ok()) return row.status();
    return std::vector{std::move(*row)};
  }
  for (const OpKind kind : {OpKind::kAttention, OpKind::kRingAttention}) {
    if (o.op != to_string(kind)) continue;
    auto row = o.cu_seqlens.empty()
                   ? measure_attention_cuda(group, kind, attention_shape(o), cuda_options(o))
                   : measure_varlen_cuda(group, kind, attention_shape(o), o.cu_seqlens, cuda_options(o));
    if (!row.ok()) return row.status();
    return std::vector{std::move(*row)};
  }
  return Status(StatusCode::kUnimplemented, (o.preset.empty() ? o.op : "preset " + o.preset) +
                                                ": the cuda executor does not have this operation yet");
}

/// The cpu executor's rows under "op", as those of the other commands; the cuda executor's as a list.
Status record_rows(const OpOptions& o, const nlohmann::json& json) {
  if (o.executor == Executor::kCuda) return append_rows(o.json, json);
  return record(o.json, "op", json) ? Status() : Status(StatusCode::kInternal, "results were not recorded");
}

/// One operation after the other.
Result<std::vector<Row>> run_all(Group& group, const std::vector<OpOptions>& operations) {
  std::vector<Row> rows;
  for (const OpOptions& o : operations) {
    auto more = o.executor == Executor::kCuda ? run_on_gpu(group, o) : run_on_cpu(group, o);
    if (!more.ok()) return more.status();
    std::move(more->begin(), more->end(), std::back_inserter(rows));
  }
  return rows;
}

Status run(OpOptions o) {
  std::uint32_t world = o.world_size.value_or(0), rank = o.rank.value_or(0);
  std::optional<std::uint32_t> local_rank;
  if (!o.world_size || !o.rank) {
    auto launcher = mkrun::detect_launcher(mkrun::process_environment(), {o.rank, o.world_size});
    if (!launcher.ok()) return launcher.status();
    if (launcher->name.empty()) {
      return {StatusCode::kInvalidArgument,
              "rank and world size: give --rank and --world-size, or RANK and WORLD_SIZE as torchrun does"};
    }
    world = launcher->world_size;
    rank = launcher->rank;
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

  auto rows = run_all(*group, operations_of(o));
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

/// Throws where options do not go together.
void check_options(const OpOptions& o) {
  if (o.op.empty() == o.preset.empty())
    throw CLI::ValidationError("op", "give an operation or --preset, not both");
  if (!o.baselines.empty() && (o.executor != Executor::kCuda || !gemm_kind(o)))
    throw CLI::ValidationError("--baseline", "only of the operations around a GEMM, with --executor cuda");
  if (!o.trace.empty() && (!o.preset.empty() || o.shapes.size() > 1))
    throw CLI::ValidationError("--trace", "one operation of one shape");
  const bool packs = o.op == to_string(OpKind::kAttention) || o.op == to_string(OpKind::kAttentionBackward) ||
                     o.op == to_string(OpKind::kRingAttention);
  if (!o.cu_seqlens.empty() && (o.executor != Executor::kCuda || !packs || o.cu_seqlens.size() < 2)) {
    throw CLI::ValidationError(
        "--cu-seqlens",
        "two numbers at least, of attention, attention_backward or ring_attention with "
        "--executor cuda");
  }
  if (o.cu_seqlens.empty() && (o.window_left != -1 || o.window_right != -1))
    throw CLI::ValidationError("--window-left, --window-right", "only with --cu-seqlens");
  if (o.compares_with("torch") && o.torch_driver.empty())
    throw CLI::ValidationError("--baseline torch", "where is torch_fused.py? Give --torch-driver");
}

}  // namespace

void add_op(CLI::App& app, int& status) {
  auto o = std::make_shared<OpOptions>();
  CLI::App* op = app.add_subcommand("op", "time and verify operations; run one process per rank");
  add_op_options(op, o.get());
  op->callback([o, &status] {
    for (const OpOptions& each : operations_of(*o)) check_options(each);
    const Status outcome = run(*o);
    if (outcome.ok()) return;
    std::cerr << "mkbench: " << outcome.to_string() << "\n";
    status = 1;
  });
}

}  // namespace mkernel::bench

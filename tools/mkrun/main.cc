// mkrun: one rank of one operation on the user's own matrices.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mkernel/client.h"
#include "proto/base/process.h"
#include "proto/base/standard_output.h"
#include "tools/mkrun/group_secret.h"
#include "tools/mkrun/job.h"
#include "tools/mkrun/launcher_env.h"
#include "tools/mkrun/options.h"

namespace mkernel::mkrun {
namespace {

enum ExitCode { kDone = 0, kFailed = 1, kUsage = 2, kNotReachable = 3 };

constexpr const char* kFooter = R"(
Operations and their files (float32 or float16 .npy; every rank gives its own part, rows split as evenly as they go):
  ag_gemm            --a [rows of this rank, k]  --b [k, n]                 -> out [m, n]
  gemm_rs            --a [m, k]  --b [k, n]                                 -> out [rows of this rank, n]
  gemm_ar            --a [m, k]  --b [k, n]                                 -> out [m, n]
  moe_dispatch_gemm  --a [tokens, hidden]  --topk-indices [tokens, topk] (int32 or int64)  --topk-weights [tokens, topk]
                     --w1 [experts of this rank, hidden, n]                 -> out [tokens, n]
                     or --w1 [.., hidden, 2 * intermediate] --w2 [.., intermediate, n] for gated experts, beside which
                     --shared-w1 [hidden, 2 * s] --shared-w2 [s, n] are of one that every token goes through
  ring_attention     --q [batch, positions of this rank, heads, head_dim]  --k --v [.., kv_heads, head_dim]  -> as --q
                     with --causal rank r holds parts r and 2 * world - 1 - r of 2 * world (zigzag);
                     --lse writes log-sum-exps, float32 [batch, heads, positions of this rank]
  attention          --q --k --v as above, of each rank alone, all of one shape; keys may have another number of positions.
                     With --cu-seqlens [sequences + 1] sequences are packed: q [positions, heads, head_dim], lse [heads, positions]
                     With --window-left, --window-right a query sees that many keys before and behind its own
  attention_backward, ring_attention_backward
                     --q --k --v --causal --scale as attention was given them (that of each rank alone --cu-seqlens and windows,
                     too), --o and --lse as it wrote them, --d-o the gradient of --o  -> d_q as --q; --d-k, --d-v: files for the others

In every path {rank}, {local_rank} and {world_size} are replaced. Rank and world size come from the flags or else from
torchrun, mpirun or srun; the group name from --group or else from the launcher's job id. A group belongs to one user.
Where the ranks of different nodes run under different uids, they share a secret: 64 hexadecimal digits (openssl rand
-hex 32) in --secret-file or in MKERNEL_GROUP_SECRET.

A result replaces an earlier file of its name when it is whole.

Exit codes: 0 done; 1 the daemon refused, the group or the operation failed, or a result could not be written; 2 usage,
or a file that is missing, malformed, of the wrong shape or cannot be opened; 3 the daemon is not reachable: later it
may be.)";

struct Flags {
  Options options;
  GivenRank given;
  double deadline = 30, join_timeout = 60;
};

void add_files(CLI::App& app, Options& o) {
  app.add_option("--out", o.out, "file to write, float32 .npy")->required();
  app.add_option("--lse", o.lse,
                 "file to write, of attention: logarithms of the sums of exponentials; file to read, of a "
                 "backward pass");
  app.add_option("--a", o.a, "left matrix, or the tokens");
  app.add_option("--b", o.b, "right matrix");
  app.add_option("--q", o.q, "queries");
  app.add_option("--k", o.k, "keys");
  app.add_option("--v", o.v, "values");
  app.add_option("--o", o.o, "of a backward pass: what attention gave");
  app.add_option("--d-o", o.d_o, "of a backward pass: its gradient");
  app.add_option("--d-k", o.d_k, "of a backward pass, file to write: gradient of the keys");
  app.add_option("--d-v", o.d_v, "of a backward pass, file to write: gradient of the values");
  app.add_option(
      "--cu-seqlens", o.cu_seqlens,
      "of attention, attention_backward and ring_attention: where packed sequences begin and end on "
      "this rank");
  app.add_option("--cu-seqlens-k", o.cu_seqlens_k, "the same of keys and values; absent: as of queries");
  app.add_option("--w1", o.w1, "first weights of this rank's experts");
  app.add_option("--w2", o.w2, "second weights of this rank's experts");
  app.add_option("--shared-w1", o.shared_w1, "first weights of an expert that every token goes through");
  app.add_option("--shared-w2", o.shared_w2, "its second weights");
  app.add_option("--topk-indices", o.topk_indices, "experts of every token");
  app.add_option("--topk-weights", o.topk_weights, "their weights");
}

void add_flags(CLI::App& app, Flags& flags) {
  Options& o = flags.options;
  app.add_option("op", o.op, "operation")
      ->required()
      ->check(CLI::IsMember({"ag_gemm", "gemm_rs", "gemm_ar", "moe_dispatch_gemm", "ring_attention",
                             "attention", "attention_backward", "ring_attention_backward"}));
  app.add_option("--group", o.group, "name of the group, the same on every rank");
  app.add_option(
      "--secret-file", o.secret_file,
      "file with 64 hexadecimal digits that only this job knows; absent: $MKERNEL_GROUP_SECRET, or none");
  app.add_option("--world-size", flags.given.world_size, "number of ranks");
  app.add_option("--rank", flags.given.rank, "this rank, from 0");
  app.add_option("--daemon", o.daemon, "session socket of this node's daemon")->capture_default_str();
  app.add_option("--executor", o.executor, "cpu, or cuda: on a GPU")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Executor>{{"cpu", Executor::kCpu}, {"cuda", Executor::kCuda}}))
      ->default_str("cpu");
  app.add_option("--device", o.device,
                 "GPU of the cuda executor; absent: the launcher's local rank, or the rank")
      ->check(CLI::Range(0, 1023));
  app.add_option("--dtype", o.dtype, "what the operation computes in: bf16 or f16")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, DataType>{{"bf16", DataType::kBf16}, {"f16", DataType::kF16}}))
      ->default_str("bf16");
  app.add_option("--b-layout", o.b_layout, "row: --b is [k, n]; column: --b is [n, k]")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Layout>{{"row", Layout::kRowMajor}, {"column", Layout::kColumnMajor}}))
      ->default_str("row");
  const CLI::Range positive(std::int64_t{1}, std::int64_t{1} << 48);
  app.add_option("--m", o.m, "check: rows of all ranks together")->check(positive);
  app.add_option("--sequence", o.sequence, "check: positions of all ranks together")->check(positive);
  app.add_option("--experts", o.experts, "check: experts of all ranks together")->check(positive);
  app.add_option("--max-tokens", o.max_tokens, "room for tokens per rank; absent: what the largest rank has")
      ->check(positive);
  app.add_flag("--causal", o.causal, "causal attention");
  const CLI::Range window(std::int64_t{-1}, std::int64_t{1} << 48);
  app.add_option("--window-left", o.window_left, "keys before its own that a query sees; -1: all")
      ->check(window)
      ->capture_default_str();
  app.add_option("--window-right", o.window_right, "likewise, keys behind it")
      ->check(window)
      ->capture_default_str();
  app.add_option("--scale", o.scale, "of the scores; absent: 1 / sqrt(head_dim)");
  app.add_option("--deadline", flags.deadline, "seconds of any single wait")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
  app.add_option("--join-timeout", flags.join_timeout, "seconds to wait for the other ranks")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
  app.add_option("--iterations", o.iterations, "launches; the time told is the median")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--threads", o.threads, "compute threads; absent: this rank's share of the cores")
      ->check(CLI::Range(1, 4096));
}

std::string filled(std::string path, const Options& options, std::uint32_t local_rank) {
  const std::pair<std::string, std::uint32_t> places[] = {
      {"{rank}", options.rank}, {"{local_rank}", local_rank}, {"{world_size}", options.world_size}};
  for (const auto& [place, value] : places) {
    for (std::size_t at = 0; (at = path.find(place, at)) != std::string::npos;) {
      path.replace(at, place.size(), std::to_string(value));
    }
  }
  return path;
}

/// What one operation alone has.
Status check_operation(const Options& o) {
  if (o.executor != Executor::kCuda && o.device)
    return {StatusCode::kInvalidArgument, "--device is of --executor cuda"};
  const auto only = [&](const std::string& flag, const std::string& who) -> Status {
    return {StatusCode::kInvalidArgument, flag + ": only " + who + " has it, not " + o.op};
  };
  if (o.op == "attention" || o.op == "attention_backward") {
    if (o.cu_seqlens.empty() && !o.cu_seqlens_k.empty())
      return {StatusCode::kInvalidArgument, "--cu-seqlens-k is given without --cu-seqlens"};
    return {};
  }
  if (!o.cu_seqlens_k.empty()) return only("--cu-seqlens-k", "attention or attention_backward");
  for (const auto& [flag, keys] :
       {std::pair{"--window-left", o.window_left}, {"--window-right", o.window_right}})
    if (keys != -1) return only(flag, "attention or attention_backward");
  if (!o.cu_seqlens.empty() && o.op != "ring_attention")
    return only("--cu-seqlens", "attention, attention_backward or ring_attention");
  if (is_backward(o.op)) return {};
  for (const auto& [flag, path] :
       {std::pair{"--o", &o.o}, {"--d-o", &o.d_o}, {"--d-k", &o.d_k}, {"--d-v", &o.d_v}})
    if (!path->empty()) return only(flag, "a backward pass");
  if (!o.lse.empty() && o.op != "ring_attention") return only("--lse", "attention or ring_attention");
  return {};
}

/// Merges flags and launcher; flags win.
Status complete(Flags& flags, const Launcher& launcher) {
  Options& o = flags.options;
  const std::string hint = launcher.name.empty() ? ", and no launcher (torchrun, mpirun, srun) tells it" : "";
  if (!flags.given.rank && launcher.name.empty())
    return {StatusCode::kInvalidArgument, "--rank is missing" + hint};
  if (!flags.given.world_size && launcher.name.empty()) {
    return {StatusCode::kInvalidArgument, "--world-size is missing" + hint};
  }
  o.rank = flags.given.rank.value_or(launcher.rank);
  o.world_size = flags.given.world_size.value_or(launcher.world_size);
  if (o.rank >= o.world_size) {
    return {StatusCode::kInvalidArgument,
            "rank " + std::to_string(o.rank) + " is not below world size " + std::to_string(o.world_size)};
  }
  if (o.group.empty() && !launcher.job.empty()) o.group = group_name_of(o.op, launcher.job);
  if (o.group.empty()) {
    return {StatusCode::kInvalidArgument,
            "--group is missing, and no launcher tells a job id to name it after"};
  }
  MK_RETURN_IF_ERROR(check_operation(o));
  if (o.executor == Executor::kCuda && !o.device)
    o.device = static_cast<int>(launcher.local_rank.value_or(o.rank));
  for (std::string* path : {&o.daemon,      &o.secret_file, &o.out,       &o.lse,        &o.a,
                            &o.b,           &o.q,           &o.k,         &o.v,          &o.o,
                            &o.d_o,         &o.d_k,         &o.d_v,       &o.cu_seqlens, &o.cu_seqlens_k,
                            &o.w1,          &o.w2,          &o.shared_w1, &o.shared_w2,  &o.topk_indices,
                            &o.topk_weights}) {
    *path = filled(*path, o, launcher.local_rank.value_or(0));
  }
  o.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(flags.deadline * 1000));
  o.join_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(flags.join_timeout * 1000));
  return {};
}

std::unique_ptr<Job> make_job(const std::string& op) {
  if (op == "moe_dispatch_gemm") return make_moe_job();
  if (is_backward(op)) return make_backward_job();
  return op == "ring_attention" || op == "attention" ? make_attention_job() : make_gemm_job();
}

/// Launches, times, writes the result.
Status run(Group& group, Job& job, const Options& options, Outputs& outputs) {
  MK_RETURN_IF_ERROR(check_outputs(group, outputs));
  MK_RETURN_IF_ERROR(job.plan(group, options));
  std::vector<double> milliseconds;
  for (int i = 0; i < options.iterations; ++i) {
    MK_RETURN_IF_ERROR(group.barrier());
    const auto begin = std::chrono::steady_clock::now();
    const auto pending = job.launch({.deadline = options.deadline, .compute_threads = options.threads});
    if (!pending.ok()) return pending.status();
    MK_RETURN_IF_ERROR(pending->wait());
    milliseconds.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  MK_RETURN_IF_ERROR(job.save(options, outputs));
  MK_RETURN_IF_ERROR(outputs.publish());
  const auto middle = milliseconds.begin() + static_cast<std::ptrdiff_t>(milliseconds.size() / 2);
  std::nth_element(milliseconds.begin(), middle, milliseconds.end());
  std::printf("rank %u of %u: %s: %.3f ms, %llu bytes to other nodes, wrote %s\n", options.rank,
              options.world_size, job.operation().signature().c_str(), *middle,
              static_cast<unsigned long long>(job.operation().wire_bytes()), options.out.c_str());
  // Nobody leaves while another rank may still need this one.
  return group.barrier();
}

int report(ExitCode code, const Status& status, const Options& options) {
  std::fprintf(stderr, "mkrun: rank %u: %s\n", options.rank, status.to_string().c_str());
  return code;
}

int run_rank(const Options& options) {
  const auto job = make_job(options.op);
  if (const Status loaded = job->load(options); !loaded.ok()) return report(kUsage, loaded, options);
  const auto secret = read_secret(options.secret_file);
  if (!secret.ok()) return report(kUsage, secret.status(), options);
  auto outputs = Outputs::open(options);
  if (!outputs.ok()) return report(kUsage, outputs.status(), options);
  auto session = Session::connect({.socket = options.daemon,
                                   .name = "mkrun " + options.op,
                                   .device = options.device.value_or(SessionOptions{}.device)});
  if (!session.ok()) {
    // What a daemon refuses, or the mode of its socket, it refuses again.
    const bool unreachable = session.status().code() == StatusCode::kUnavailable ||
                             session.status().code() == StatusCode::kDeadlineExceeded;
    return report(unreachable ? kNotReachable : kFailed, session.status(), options);
  }
  auto group = session->join({.name = options.group,
                              .world_size = options.world_size,
                              .rank = options.rank,
                              .timeout = options.join_timeout,
                              .secret = secret.value()});
  if (!group.ok()) return report(kFailed, group.status(), options);
  const Status status = run(*group, *job, options, *outputs);
  return status.ok() ? kDone : report(kFailed, status, options);
}

int main_of(int argc, char** argv) {
  Flags flags;
  CLI::App app{"Runs one rank of one fused operation on your own matrices.", "mkrun"};
  app.footer(kFooter);
  app.set_version_flag("--version", version());
  add_flags(app, flags);
  add_files(app, flags.options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kUsage;
  }
  const auto launcher = detect_launcher(process_environment(), flags.given);
  const Status completed = launcher.ok() ? complete(flags, launcher.value()) : launcher.status();
  if (!completed.ok()) return report(kUsage, completed, flags.options);
  return run_rank(flags.options);
}

}  // namespace
}  // namespace mkernel::mkrun

MK_OPEN_STANDARD_FDS_FIRST();

int main(int argc, char** argv) {
  mkernel::base::ignore_file_size_signal();
  return mkernel::finish_output("mkrun", mkernel::mkrun::main_of(argc, argv));
}

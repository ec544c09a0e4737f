#include "tools/mkbench/op_options.h"

#include <map>
#include <utility>

namespace mkernel::bench {
namespace {

CLI::Option* add_operation(CLI::App* op, OpOptions* o) {
  return op->add_option("operation", o->op)
      ->check(CLI::IsMember({"ag_gemm", "gemm_rs", "gemm_ar", "moe_dispatch_gemm", "ring_attention",
                             "attention", "attention_backward", "ring_attention_backward"}));
}

/// Of the run, however many operations it has.
void add_group_options(CLI::App* op, OpOptions* o) {
  op->add_option("--preset", o->preset, "a list of operations and shapes instead of one")
      ->check(CLI::IsMember({"demo"}));
  op->add_option(
        "--then", o->then,
        "another operation that the same ranks run afterwards, with its options as one text, such as "
        "\"gemm_rs --m 4096\"; shapes, plans and --trace are its own, the rest is as in this "
        "command unless the text says otherwise; repeatable")
      ->allow_extra_args(false);
  op->add_option("--daemon", o->daemon, "session socket of this node's daemon")->capture_default_str();
  op->add_option("--group", o->group, "the same on every rank")->capture_default_str();
  op->add_option("--world-size", o->world_size);
  op->add_option("--rank", o->rank);
  op->add_option("--join-timeout", o->join_timeout, "seconds to wait for the other ranks")
      ->capture_default_str();
  op->add_option("--executor", o->executor, "cpu, or cuda: on a GPU")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Executor>{{"cpu", Executor::kCpu}, {"cuda", Executor::kCuda}}));
  op->add_option("--device", o->device,
                 "GPU of this rank on the cuda executor; default: the launcher's local rank, or the rank")
      ->check(CLI::Range(0, 1023));
  op->add_option(
      "--nic-gbps", o->nic_gbps,
      "gigabits per second of a rank's NIC: recorded beside the rows, and what the cuda executor plans with");
  op->add_option("--json", o->json, "rank 0 records its rows in this file");
}

void add_shape_options(CLI::App* op, OpOptions* o) {
  op->add_option("--m", o->m, "rows of the product")->capture_default_str();
  op->add_option("--n", o->n, "columns of the product; of the layer's output for moe_dispatch_gemm")
      ->capture_default_str();
  op->add_option("--k", o->k, "inner dimension on each rank")->capture_default_str();
  op->add_option("--shape", o->shapes, "MxNxK instead of --m, --n, --k; repeatable");
  op->add_flag("--column-major", o->column_major,
               "b as [n, k]; on the cuda executor also the weights of experts");
  op->add_option("--batch", o->batch)->capture_default_str();
  op->add_option("--sequence", o->sequence,
                 "positions of all ranks together; of each rank for attention and attention_backward")
      ->capture_default_str();
  op->add_option("--heads", o->heads)->capture_default_str();
  op->add_option("--kv-heads", o->kv_heads)->capture_default_str();
  op->add_option("--head-dim", o->head_dim)->capture_default_str();
  op->add_flag("--causal", o->causal);
  op->add_option(
        "--cu-seqlens", o->cu_seqlens,
        "attention, attention_backward and ring_attention on the cuda executor: 0,512,700,... where "
        "sequences of different lengths begin and end on every rank, instead of --batch and --sequence")
      ->delimiter(',');
  op->add_option("--window-left", o->window_left, "with --cu-seqlens: keys before a query's own; -1: all")
      ->capture_default_str();
  op->add_option("--window-right", o->window_right, "likewise, keys behind it")->capture_default_str();
  op->add_option("--tokens", o->tokens, "per rank")->capture_default_str();
  op->add_option("--hidden", o->hidden)->capture_default_str();
  op->add_option("--intermediate", o->intermediate, "0: one product per expert")->capture_default_str();
  op->add_option("--shared-intermediate", o->shared_intermediate,
                 "of an expert that every token goes through; 0: there is none")
      ->capture_default_str();
  op->add_option("--experts", o->experts)->capture_default_str();
  op->add_option("--topk", o->topk)->capture_default_str();
  op->add_option("--capacity", o->capacity, "rows that a rank takes for its experts; 0: as many as can come")
      ->capture_default_str();
  op->add_option("--dtype", o->dtype)
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, DataType>{{"bf16", DataType::kBf16}, {"f16", DataType::kF16}}));
}

void add_plan_options(CLI::App* op, OpOptions* o) {
  op->add_option(
        "--baseline", o->baselines,
        "cuda executor: measure in the same run, in turns, the product alone (gemm: cuBLAS, product: "
        "the GEMM body of the operations), cuBLAS and NCCL, torch's fused operations; repeatable")
      ->check(CLI::IsMember({"gemm", "product", "nccl", "torch"}));
  op->add_option("--torch-driver", o->torch_driver,
                 "torch_fused.py, for --baseline torch; needs python3 and torch")
      ->check(CLI::ExistingFile);
  op->add_option("--comm-ctas", o->plan.comm_ctas,
                 "with --executor cuda: CTAs that push or sum; 0: the plan's choice")
      ->capture_default_str();
  op->add_option("--sms", o->plan.sms, "with --executor cuda: multiprocessors at most; 0: all")
      ->capture_default_str();
  op->add_option("--share", o->share,
                 "with --executor cuda: ranks that run on this rank's GPU at the same time (under MPS); each "
                 "takes its part of the multiprocessors where --sms does not say how many")
      ->check(CLI::Range(1, 64));
  op->add_option("--link-gbytes", o->plan.link_gbytes,
                 "with --executor cuda: kernels of ag_gemm, gemm_rs and gemm_ar wait as if links "
                 "between the ranks carried so many 10^9 bytes a second from each; 0: nothing but memory")
      ->capture_default_str();
  op->add_option(
      "--machine", o->plan.machine,
      "with --executor cuda: the machine whose rates the plan assumes, H200, H100, H20, H800, GH200, "
      "'H100 PCIe', 'H100 NVL' or 'H200 NVL'; "
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
}

}  // namespace

void add_op_options(CLI::App* op, OpOptions* o) {
  add_operation(op, o);
  add_group_options(op, o);
  add_shape_options(op, o);
  add_plan_options(op, o);
  add_run_options(op, o);
}

std::vector<OpOptions> operations_of(const OpOptions& o) {
  std::vector<OpOptions> all{o};
  for (const std::string& text : o.then) {
    OpOptions next{.executor = o.executor,
                   .device = o.device,
                   .nic_gbps = o.nic_gbps,
                   .share = o.share,
                   .iterations = o.iterations,
                   .threads = o.threads,
                   .deadline = o.deadline};
    CLI::App app("one operation of a run", "--then");
    add_operation(&app, &next)->required();
    add_shape_options(&app, &next);
    add_plan_options(&app, &next);
    add_run_options(&app, &next);
    app.parse(text);
    all.push_back(std::move(next));
  }
  return all;
}

}  // namespace mkernel::bench

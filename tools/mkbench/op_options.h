// The command line of `mkbench op`.
#pragma once

#include <mkernel/client.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mkernel::bench {

struct OpOptions {
  std::string op;
  std::string preset;
  std::string daemon = "/run/mkernel/mkerneld.sock";
  std::string group = "mkbench";
  std::optional<std::uint32_t> world_size, rank;
  std::int64_t m = 2048, n = 512, k = 2048;
  std::int64_t batch = 1, sequence = 4096, heads = 8, kv_heads = 8, head_dim = 128;
  std::int64_t tokens = 512, hidden = 1024, intermediate = 512, experts = 16, topk = 4, capacity = 0,
               shared_intermediate = 0;
  std::vector<std::int32_t> cu_seqlens;
  std::int64_t window_left = -1, window_right = -1;
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
  std::vector<std::string> then;  ///< options of further operations, each as one text

  bool compares_with(const char* baseline) const {
    return std::find(baselines.begin(), baselines.end(), baseline) != baselines.end();
  }
  ExecutorOptions executor_options() const {
    return {std::chrono::milliseconds(static_cast<std::int64_t>(deadline * 1000)), threads};
  }
};

void add_op_options(CLI::App* op, OpOptions* o);
/// The operation of `o` and those that follow it in the same run. Throws CLI's errors where a text is no
/// operation.
std::vector<OpOptions> operations_of(const OpOptions& o);

}  // namespace mkernel::bench

// What the command line of mkrun says, with the launcher's word where a flag is absent.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "mkernel/ops.h"

namespace mkernel::mkrun {

/// Operations that read --lse and --o, which the others write.
inline bool is_backward(const std::string& op) {
  return op == "attention_backward" || op == "ring_attention_backward";
}

struct Options {
  std::string op;
  std::string group;
  std::string secret_file;  ///< of the group's join secret; empty: from the environment, or none
  std::string daemon = "/run/mkernel/mkerneld.sock";
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
  /// Files to read, placeholders filled in.
  std::string a, b, q, k, v, cu_seqlens, cu_seqlens_k, w1, w2, shared_w1, shared_w2, topk_indices,
      topk_weights;
  std::string out;
  std::string lse;       ///< to write, of attention; empty: it is not computed. Of a backward pass to read
  std::string o, d_o;    ///< to read, of a backward pass
  std::string d_k, d_v;  ///< to write, of a backward pass; empty: they are not
  Executor executor = Executor::kCpu;
  std::optional<int> device;  ///< of the cuda executor
  DataType dtype = DataType::kBf16;
  Layout b_layout = Layout::kRowMajor;
  std::int64_t m = 0, sequence = 0, experts = 0, max_tokens = 0;  ///< 0 = from the files of all ranks
  bool causal = false;
  /// Keys before and behind its own that a query sees, in attention of each rank alone; -1: all.
  std::int64_t window_left = -1, window_right = -1;
  double scale = 0;
  std::chrono::milliseconds deadline{30000};
  std::chrono::milliseconds join_timeout{60000};
  int iterations = 1;
  int threads = 0;
};

}  // namespace mkernel::mkrun

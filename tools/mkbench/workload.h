// One operation on one rank, as the benchmark sees it: make fresh inputs, launch, verify every output element
// against a reference computed apart from the operation (fp32 BLAS or fp64, from the inputs of all ranks).
#pragma once

#include <mkernel/client.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "proto/abi/status.h"

namespace mkernel::bench {

/// Outcome of a verification: every element was looked at.
struct Verdict {
  std::uint64_t elements = 0;
  std::uint64_t wrong = 0;  ///< elements further from the reference than the error bound of the operation
  double max_rel_err = 0;   ///< largest |out - reference| over the root mean square of the reference
};

/// Compares `out` with `reference` element by element; `bound[i]` is the largest permitted |difference|.
Verdict compare(const std::vector<float>& out, const std::vector<float>& reference,
                const std::vector<float>& bound);

class Workload {
 public:
  virtual ~Workload() = default;
  /// {op, m, n, k, dtype, ...} of the recorded row.
  virtual nlohmann::json shape() const = 0;
  /// "4096 x 1024 x 4096".
  virtual std::string shape_text() const = 0;
  /// Fresh random inputs for this iteration, outputs poisoned.
  virtual void prepare(std::uint64_t iteration) = 0;
  virtual Result<Pending> launch(const ExecutorOptions& options) = 0;
  virtual std::uint64_t wire_bytes() const = 0;
  virtual Verdict verify() const = 0;
};

Result<std::unique_ptr<Workload>> make_gemm_workload(Group& group, OpKind kind, const GemmShape& shape);
/// `tokens`: of every rank.
Result<std::unique_ptr<Workload>> make_moe_workload(Group& group, const MoeShape& shape);
/// `kind`: kRingAttention or kAttention.
Result<std::unique_ptr<Workload>> make_attention_workload(Group& group, OpKind kind,
                                                          const AttentionShape& shape);
/// `kind`: kRingAttentionBackward or kAttentionBackward.
Result<std::unique_ptr<Workload>> make_backward_workload(Group& group, OpKind kind,
                                                         const AttentionShape& shape);

/// {op, m, n, k, dtype, ...} of a recorded row of attention, and the text of its shape.
nlohmann::json json_of(OpKind kind, const AttentionShape& shape);
std::string text_of(const AttentionShape& shape);

/// The operation's name on the command line and in recorded rows: "ag_gemm", "gemm_rs", ...
std::string to_string(OpKind kind);
std::string to_string(DataType type);

}  // namespace mkernel::bench

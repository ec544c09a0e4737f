// One measured shape of one operation.
#pragma once

#include <mkernel/client.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace mkernel::bench {

struct Row {
  nlohmann::json shape;  ///< {op, executor, m, n, k, dtype, ...}
  std::string shape_text;
  std::vector<double> milliseconds;  ///< per iteration, of the slowest rank
  /// Of the slowest rank, from a barrier until it is over: the first launch of the operation, and the median
  /// of some behind it.
  std::optional<double> first_ms, single_ms;
  // Medians of the slowest rank in the same run, where they were asked for.
  std::optional<double> gemm_ms;         ///< the product alone: cuBLAS
  std::optional<double> product_ms;      ///< the product alone: the GEMM body of the operations
  std::optional<double> cublas_nccl_ms;  ///< cuBLAS and NCCL, one after the other
  std::optional<double> torch_fused_ms;  ///< torch's fused operation over symmetric memory
  std::uint64_t wire_bytes = 0;          ///< of all ranks, last iteration
  std::uint64_t elements = 0, wrong = 0;
  double max_rel_err = 0;
};

/// As it is recorded (tests/perf/README.md); null for what was not measured. `nic_gbps`: gigabits per second
/// of a rank's NIC, where there is one.
nlohmann::json to_json(const Row& row, const Group& group, const std::optional<double>& nic_gbps);

/// A table on standard output.
void print_rows(const std::vector<Row>& rows, const Group& group);

}  // namespace mkernel::bench

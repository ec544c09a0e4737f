#include "tools/mkbench/row.h"

#include <cstdio>
#include <iostream>

#include "tools/mkbench/report.h"

namespace mkernel::bench {
namespace {

nlohmann::json or_null(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

std::vector<std::string> cells(const Row& row, const Group& group) {
  const double ms = median(row.milliseconds);
  const int digits = ms < 10 ? 4 : 1;
  char error[16];
  std::snprintf(error, sizeof(error), "%.1e", row.max_rel_err);
  return {row.shape["op"],
          row.shape_text,
          std::to_string(group.world_size()) + " on " + std::to_string(group.node_count()),
          fixed(ms, digits),
          fixed(100 * spread(row.milliseconds), 0) + " %",
          fixed_or_dash(row.first_ms, digits),
          fixed_or_dash(row.single_ms, digits),
          fixed_or_dash(row.gemm_ms, digits),
          row.gemm_ms ? fixed(ms / *row.gemm_ms, 2) : "-",
          fixed_or_dash(row.product_ms, digits),
          fixed_or_dash(row.cublas_nccl_ms, digits),
          fixed_or_dash(row.torch_fused_ms, digits),
          human_bytes(static_cast<double>(row.wire_bytes)),
          error,
          std::to_string(row.elements),
          row.wrong == 0 ? "verified" : std::to_string(row.wrong) + " WRONG"};
}

}  // namespace

nlohmann::json to_json(const Row& row, const Group& group, const std::optional<double>& nic_gbps) {
  nlohmann::json json = row.shape;
  json.update({{"world", group.world_size()},
               {"nodes", group.node_count()},
               {"nic_gbps", or_null(nic_gbps)},
               {"ms", median(row.milliseconds)},
               {"ms_spread", spread(row.milliseconds)},
               {"first_ms", or_null(row.first_ms)},
               {"single_ms", or_null(row.single_ms)},
               {"gemm_ms", or_null(row.gemm_ms)},
               {"product_ms", or_null(row.product_ms)},
               {"cublas_nccl_ms", or_null(row.cublas_nccl_ms)},
               {"torch_fused_ms", or_null(row.torch_fused_ms)},
               {"wire_bytes", row.wire_bytes},
               {"max_rel_err", row.max_rel_err},
               {"verified", row.wrong == 0},
               {"iterations", row.milliseconds.size()}});
  return json;
}

void print_rows(const std::vector<Row>& rows, const Group& group) {
  std::vector<std::vector<std::string>> table{{"operation", "shape", "ranks", "time ms", "spread", "first",
                                               "later", "gemm", "ratio", "product", "cuBLAS+NCCL", "torch",
                                               "over the wire", "max error", "elements", "verdict"}};
  for (const Row& row : rows) table.push_back(cells(row, group));
  print_table(std::cout, table);
}

}  // namespace mkernel::bench

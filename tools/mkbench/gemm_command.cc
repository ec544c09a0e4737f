#include "tools/mkbench/gemm_command.h"

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "tools/mkbench/gemm_floor.h"
#include "tools/mkbench/report.h"
#include "tools/mkbench/workload.h"

namespace mkernel::bench {
namespace {

struct GemmOptions {
  int repeats = 5;
  std::string json;
};

Status run(const GemmOptions& o) {
  const std::vector<GemmShape> shapes{{.m = 1024, .n = 1024, .k = 1024},
                                      {.m = 2048, .n = 2048, .k = 2048},
                                      {.m = 4096, .n = 1024, .k = 4096},
                                      {.m = 2048, .n = 2048, .k = 2048, .b_layout = Layout::kColumnMajor},
                                      {.m = 2048, .n = 2048, .k = 2048, .dtype = DataType::kF16}};
  auto rows = measure_gemm_floor(shapes, o.repeats);
  if (!rows.ok()) return rows.status();
  std::vector<std::vector<std::string>> table{
      {"m x n x k", "dtype", "b", "BLAS GFLOP/s", "executor GFLOP/s", "ratio"}};
  nlohmann::json json = nlohmann::json::array();
  for (const GemmFloorRow& row : *rows) {
    const GemmShape& shape = row.shape;
    const std::string layout = shape.b_layout == Layout::kColumnMajor ? "column-major" : "row-major";
    table.push_back(
        {std::to_string(shape.m) + " x " + std::to_string(shape.n) + " x " + std::to_string(shape.k),
         to_string(shape.dtype), layout, fixed(row.blas_gflops, 1), fixed(row.executor_gflops, 1),
         fixed(row.ratio, 2)});
    json.push_back({{"m", shape.m},
                    {"n", shape.n},
                    {"k", shape.k},
                    {"dtype", to_string(shape.dtype)},
                    {"b_layout", layout},
                    {"blas_gflops", row.blas_gflops},
                    {"executor_gflops", row.executor_gflops},
                    {"ratio", row.ratio}});
  }
  print_table(std::cout, table);
  if (!o.json.empty() && !record(o.json, "gemm", json))
    return {StatusCode::kInternal, "results were not recorded"};
  return {};
}

}  // namespace

void add_gemm(CLI::App& app, int& status) {
  auto o = std::make_shared<GemmOptions>();
  CLI::App* gemm = app.add_subcommand("gemm", "the cpu executor's product against the BLAS alone");
  gemm->add_option("--repeats", o->repeats, "timed repetitions of each shape")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  gemm->add_option("--json", o->json, "record in this file");
  gemm->callback([o, &status] {
    const Status outcome = run(*o);
    if (outcome.ok()) return;
    std::cerr << "mkbench: " << outcome.to_string() << "\n";
    status = 1;
  });
}

}  // namespace mkernel::bench

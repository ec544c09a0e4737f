// mkbench-cuda: what the kernels do on this machine's GPU, without daemon or client; one file that can be
// carried.
#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "proto/base/standard_output.h"
#include "tools/mkbench/gemm_cuda.h"
#include "tools/mkbench/parse_shape.h"
#include "tools/mkbench/report.h"

namespace mkernel::bench {
namespace {

struct Arguments {
  GemmCudaOptions gemm;
  std::vector<std::string> shapes;
  std::string dtype = "bf16", layout = "both", tile = "auto", json;
  bool no_check = false, side_by_side = false, decode = false;
};

const std::map<std::string, kernels::Sm90Tile> kTiles{{"128x256", kernels::Sm90Tile::k128x256},
                                                      {"256x128", kernels::Sm90Tile::k256x128},
                                                      {"128x128", kernels::Sm90Tile::k128x128},
                                                      {"128x64", kernels::Sm90Tile::k128x64}};

/// "skinny 16/4": the body for few rows, padded to 16, k split over four CTAs. "128x256/8": bands of 8; with
/// "=" clusters lie side by side; "+12": the last 12 cluster tiles are cut into narrow ones.
std::string plan_text(const kernels::Sm90LocalPlan& chosen) {
  if (const auto* skinny = std::get_if<kernels::Sm90SkinnyPlan>(&chosen))
    return "skinny " + std::to_string(skinny->rows) + "/" + std::to_string(skinny->split);
  const auto& plan = std::get<kernels::Sm90Plan>(chosen);
  const bool side_by_side = plan.cluster == kernels::Sm90Cluster::kSideBySide;
  const std::int32_t tail = plan.raster.tiles() - plan.whole;
  return std::to_string(plan.tile.rows) + "x" + std::to_string(plan.tile.columns) +
         (side_by_side ? "=/" : "/") + std::to_string(plan.raster.band()) +
         (tail > 0 ? "+" + std::to_string(tail) : "");
}

/// Products of few rows, which are bound by the memory that b lies in.
std::vector<GemmShape> decode_shapes() {
  return {{1, 4096, 4096},   {7, 4096, 4096},   {16, 4096, 4096},  {16, 7168, 2048},
          {64, 2048, 7168},  {64, 7168, 2048},  {64, 8192, 14336}, {64, 28672, 8192},
          {128, 7168, 2048}, {128, 4096, 4096}, {128, 8192, 14336}};
}

/// The cubes, what one rank computes in AG+GEMM (n = m / 4) and GEMM+RS, GEMM+AR (k = m / 4) on four GPUs,
/// shapes that no tile divides, a rank's part of a Llama-70B layer (up and down projection), and products of
/// few rows.
std::vector<GemmShape> default_shapes() {
  std::vector<GemmShape> shapes;
  for (const std::int64_t size : {2048, 4096, 8192, 16384}) {
    shapes.push_back({size, size, size});
    shapes.push_back({size, size / 4, size});
    shapes.push_back({size, size, size / 4});
  }
  for (const std::int64_t m : {1000, 1024, 4097, 12345, 12288}) shapes.push_back({m, 1024, 4096});
  shapes.push_back({4096, 3 * 128, 4096});
  shapes.push_back({8192, 28672 / 4, 8192});
  shapes.push_back({8192, 8192, 28672 / 4});
  for (const GemmShape& shape : decode_shapes()) shapes.push_back(shape);
  return shapes;
}

nlohmann::json json_row(const GemmCudaRow& row) {
  return {{"gpu", gpu_name()},
          {"date", today()},
          {"op", "gemm"},
          {"executor", "cuda"},
          {"m", row.shape.m},
          {"n", row.shape.n},
          {"k", row.shape.k},
          {"dtype", row.shape.dtype == DataType::kBf16 ? "bf16" : "fp16"},
          {"b_layout", row.shape.b_layout == Layout::kRowMajor ? "row-major" : "column-major"},
          {"plan", plan_text(row.plan)},
          {"graph", row.graph},
          {"world", 1},
          {"nodes", 1},
          {"nic_gbps", nullptr},
          {"ms", row.ms},
          {"gemm_ms", row.cublas_ms},
          {"cublas_nccl_ms", nullptr},
          {"torch_fused_ms", nullptr},
          {"tflops", row.tflops()},
          {"ratio", row.cublas_ms / row.ms},
          {"spread", row.spread},
          {"max_rel_err", row.check.relative_error},
          {"worst_of_bound", row.check.worst},
          {"verified", row.verified},
          {"iterations", row.iterations}};
}

std::vector<std::string> table_row(const GemmCudaRow& row, bool checked) {
  const GemmShape& s = row.shape;
  return {std::to_string(s.m) + " x " + std::to_string(s.n) + " x " + std::to_string(s.k),
          s.dtype == DataType::kBf16 ? "bf16" : "fp16",
          s.b_layout == Layout::kRowMajor ? "row" : "column",
          plan_text(row.plan),
          fixed(row.ms, 4),
          fixed(row.cublas_ms, 4),
          fixed(row.tflops(), 0),
          fixed(row.tflops() * row.ms / row.cublas_ms, 0),
          fixed(row.cublas_ms / row.ms, 3),
          fixed(row.spread, 2),
          checked ? (row.verified ? "ok " : "WRONG ") + fixed(row.check.worst, 3) : "-"};
}

Status run_gemm(const Arguments& arguments) {
  MK_RETURN_IF_ERROR(hopper_present());
  GemmCudaOptions options = arguments.gemm;
  options.check = !arguments.no_check;
  if (arguments.side_by_side) options.cluster = kernels::Sm90Cluster::kSideBySide;
  options.skinny = arguments.tile == "skinny";
  if (!options.skinny && arguments.tile != "auto") options.tile = kTiles.at(arguments.tile);
  std::vector<GemmShape> shapes;
  if (arguments.decode) shapes = decode_shapes();
  if (shapes.empty() && arguments.shapes.empty()) shapes = default_shapes();
  for (const std::string& text : arguments.shapes) {
    auto shape = parse_shape(text);
    if (!shape.ok()) return shape.status();
    shapes.push_back(*shape);
  }
  std::vector<std::vector<std::string>> table{{"m x n x k", "dtype", "b", "tile", "ms", "cuBLAS ms",
                                               "TFLOP/s", "cuBLAS", "ratio", "spread", "check"}};
  nlohmann::json json = nlohmann::json::array();
  bool verified = true;
  for (GemmShape shape : shapes) {
    shape.dtype = arguments.dtype == "bf16" ? DataType::kBf16 : DataType::kF16;
    for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
      if (arguments.layout == "row" && layout != Layout::kRowMajor) continue;
      if (arguments.layout == "column" && layout != Layout::kColumnMajor) continue;
      shape.b_layout = layout;
      auto row = measure_gemm_cuda(shape, options);
      if (!row.ok()) return row.status();
      verified = verified && (row->verified || arguments.no_check);
      table.push_back(table_row(*row, options.check));
      json.push_back(json_row(*row));
    }
  }
  print_table(std::cout, table);
  if (!arguments.json.empty()) MK_RETURN_IF_ERROR(append_rows(arguments.json, json));
  return verified ? Status() : Status(StatusCode::kDataLoss, "a product is wrong");
}

}  // namespace
}  // namespace mkernel::bench

int main(int argc, char** argv) {
  CLI::App app(
      "mkbench-cuda: benchmarks of the kernels. Exit status: 0 ok, 1 failed or not verified, 2 usage.");
  app.require_subcommand(1);
  mkernel::bench::Arguments a;
  CLI::App* gemm = app.add_subcommand("gemm", "the GEMM body alone against cuBLAS");
  gemm->add_option("--shape", a.shapes, "MxNxK, repeatable; default: cubes and the shapes of a rank of four");
  gemm->add_option("--dtype", a.dtype)->check(CLI::IsMember({"bf16", "fp16"}))->capture_default_str();
  gemm->add_option("--b", a.layout, "layout of b")
      ->check(CLI::IsMember({"row", "column", "both"}))
      ->capture_default_str();
  gemm->add_flag("--decode", a.decode, "shapes of few rows");
  gemm->add_option("--tile", a.tile, "instead of the plan's choice; skinny: the body for few rows")
      ->check(CLI::IsMember({"auto", "skinny", "128x256", "256x128", "128x128", "128x64"}))
      ->capture_default_str();
  gemm->add_option("--split", a.gemm.split, "with --tile skinny: CTAs that share k, 0: the plan's choice")
      ->check(CLI::IsMember({0, 1, 2, 4, 8}));
  gemm->add_flag("--side-by-side", a.side_by_side, "with --tile: clusters share a instead of b");
  gemm->add_option("--band", a.gemm.band, "rows of a raster band, 0: the plan's choice")
      ->check(CLI::NonNegativeNumber);
  gemm->add_option("--iterations", a.gemm.iterations, "timed calls of each side")
      ->check(CLI::Range(5, 10000))
      ->capture_default_str();
  gemm->add_option("--seconds", a.gemm.seconds, "at most this long for one shape")->capture_default_str();
  gemm->add_flag("--graph", a.gemm.graph,
                 "time calls in replayed graphs, as products of microseconds need it");
  gemm->add_flag("--no-check", a.no_check, "do not compare with fp64");
  gemm->add_option("--json", a.json, "add the rows to the list in this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return mkernel::finish_output("mkbench-cuda", app.exit(error) == 0 ? 0 : 2);
  }
  const mkernel::Status outcome = mkernel::bench::run_gemm(a);
  if (!outcome.ok()) std::cerr << "mkbench-cuda: " << outcome.to_string() << "\n";
  return mkernel::finish_output("mkbench-cuda", outcome.ok() ? 0 : 1);
}

#include "tools/mkbench/report.h"

#include <doctest/doctest.h>

#include <sstream>

namespace mkernel::bench {
namespace {

std::string printed(const std::vector<std::vector<std::string>>& rows) {
  std::ostringstream out;
  print_table(out, rows);
  return out.str();
}

TEST_CASE("a table has only the columns in which some row has something") {
  CHECK(printed({{"operation", "ms", "torch", "note"},
                 {"ag_gemm", "12.5", "-", ""},
                 {"gemm_rs", "3.5", "-", ""}}) == "operation    ms\nag_gemm    12.5\ngemm_rs     3.5\n");
  CHECK(printed({{"operation", "torch"}, {"ag_gemm", "-"}, {"gemm_rs", "3.5"}}) ==
        "operation  torch\nag_gemm        -\ngemm_rs      3.5\n");
  CHECK(printed({{"operation", "torch"}}) == "operation  torch\n");  // nothing is known yet
  CHECK(printed({}).empty());
}

}  // namespace
}  // namespace mkernel::bench

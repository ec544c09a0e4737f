// mkbench: what this machine does. Tables for people, --json for tests/perf/results.
#include <CLI/CLI.hpp>

#include "proto/base/process.h"
#include "proto/base/standard_output.h"
#include "tools/mkbench/fabric_command.h"
#include "tools/mkbench/gemm_command.h"
#include "tools/mkbench/op.h"
#include "tools/mkbench/put_command.h"
#include "tools/mkbench/ring_command.h"
#include "tools/mkbench/tenants_command.h"

MK_OPEN_STANDARD_FDS_FIRST();

int main(int argc, char** argv) {
  mkernel::base::ignore_file_size_signal();
  CLI::App app("mkbench: benchmarks of mkernel. Exit status: 0 ok, 1 failed or not verified, 2 usage.");
  app.require_subcommand(1);
  int status = 0;
  mkernel::bench::add_ring(app, status);
  mkernel::bench::add_fabric(app, status);
  mkernel::bench::add_put(app, status);
  mkernel::bench::add_op(app, status);
  mkernel::bench::add_tenants(app, status);
  mkernel::bench::add_gemm(app, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return mkernel::finish_output("mkbench", app.exit(error) == 0 ? 0 : 2);
  }
  return mkernel::finish_output("mkbench", status);
}

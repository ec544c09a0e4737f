// `mkbench gemm`: the cpu executor's product against the BLAS alone, same shape, one compute thread each.
#pragma once

#include <CLI/CLI.hpp>

namespace mkernel::bench {

/// Adds the subcommand to `app`. `status` becomes the exit status when it runs.
void add_gemm(CLI::App& app, int& status);

}  // namespace mkernel::bench

// `mkbench op`: one rank of a measured operation. Every rank runs the same command (RANK and WORLD_SIZE, or
// the names of mpirun and srun, say which it is); rank 0 prints and records.
#pragma once

#include <CLI/CLI.hpp>

namespace mkernel::bench {

/// Adds the subcommand to `app`. `status` becomes the exit status when it runs.
void add_op(CLI::App& app, int& status);

}  // namespace mkernel::bench

// `mkbench put`: bandwidth of puts from a rank on one node to a rank on another, through both daemons. Two
// processes, one per rank; rank 0 sends and prints.
#pragma once

#include <CLI/CLI.hpp>

namespace mkernel::bench {

/// Adds the subcommand to `app`. `status` becomes the exit status when it runs.
void add_put(CLI::App& app, int& status);

}  // namespace mkernel::bench

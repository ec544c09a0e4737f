// `mkbench fabric`: put latency and bandwidth by size, per transport, between two nodes played in this
// process.
#pragma once

#include <CLI/CLI.hpp>

namespace mkernel::bench {

/// Adds the subcommand to `app`. `status` becomes the exit status when it runs.
void add_fabric(CLI::App& app, int& status);

}  // namespace mkernel::bench

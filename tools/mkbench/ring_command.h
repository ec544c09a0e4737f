// `mkbench ring`: requests per second through one proxy thread into a null transport, and the echo client ->
// proxy -> client through a running daemon.
#pragma once

#include <CLI/CLI.hpp>

namespace mkernel::bench {

/// Adds the subcommand to `app`. `status` becomes the exit status when it runs.
void add_ring(CLI::App& app, int& status);

}  // namespace mkernel::bench

// `mkbench tenants`: what a tenant notices of another one that attacks it: signal latency and bandwidth
// through two daemons that the caller has started, in turns with and without the attacker.
#pragma once

#include <CLI/CLI.hpp>

namespace mkernel::bench {

/// Adds the subcommand to `app`, and the hidden one that is an attacker. `status` becomes the exit status
/// when one runs.
void add_tenants(CLI::App& app, int& status);

}  // namespace mkernel::bench

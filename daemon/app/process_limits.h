// What the process may open, start and map, compared with what the daemon needs: a limit that is too small
// ends the start with the number needed, and not some thread of a library later.
#pragma once

#include <cstdint>

#include "daemon/config/config.h"
#include "proto/abi/status.h"

namespace mkernel::app {

/// File descriptors for this node's own work and a first session; more are the sessions'.
std::uint64_t fds_needed(std::uint32_t proxies);
/// Threads of the daemon and of gRPC, which has some for each processor.
std::uint64_t threads_needed(std::uint32_t proxies, unsigned processors);

/// Gives threads a stack of some size, whatever `ulimit -s` says: by default it is that, be it tiny or as
/// large as all of the memory. Call first of all in main(). Errors: kResourceExhausted.
Status check_stack_limit();

/// Raises RLIMIT_NOFILE as far as the process may, then tries what is needed: opens nothing that stays,
/// starts and ends threads. Call once, before any thread that stays. Errors: kResourceExhausted naming each
/// limit, its value and what is needed.
Status check_process_limits(const config::Config& config);

}  // namespace mkernel::app

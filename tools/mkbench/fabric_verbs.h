// `mkbench fabric` over RDMA, reliable connections.
#pragma once

#include <string>

#include "tools/mkbench/fabric.h"
#include "tools/mkbench/perftest.h"

namespace mkernel::bench {

struct VerbsBench {
  MakeTransport make;
  PerftestDevice device;
};

/// `wanted`: "mlx5_0" or "mlx5_0:1"; empty: the first port that can be used, with the GID that the daemon
/// would choose. Errors: the library's, and kFailedPrecondition with why each port cannot be used.
Result<VerbsBench> open_verbs_bench(const std::string& wanted);

}  // namespace mkernel::bench

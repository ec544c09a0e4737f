// torch's fused operations, timed by torch_fused.py in a process of its own beside each rank.
#pragma once

#include <mkernel/client.h>

#include <string>
#include <vector>

#include "tools/mkbench/row.h"

namespace mkernel::bench {

struct TorchOptions {
  std::string driver;  ///< path of torch_fused.py; run by python3
  int device = 0;
  int iterations = 3;
};

/// **Collective**, ranks of one node. Sets torch_fused_ms of the rows that torch could do; the values are
/// rank 0's, other ranks' rows stay as they are. Errors: kUnimplemented on several nodes, kUnavailable when
/// the driver fails (its words are on stderr).
Status measure_torch_fused(Group& group, const TorchOptions& options, std::vector<Row>& rows);

}  // namespace mkernel::bench

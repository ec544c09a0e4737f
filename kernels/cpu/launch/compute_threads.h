// How many threads of the cpu executor play compute CTAs.
#pragma once

#include <algorithm>
#include <thread>

#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// What the caller asked for, else this rank's share of the node's hardware threads; at least 1.
inline int compute_threads(const ExecutorOptions& options, const Topology& topology) {
  if (options.compute_threads > 0) return options.compute_threads;
  const unsigned share = std::thread::hardware_concurrency() / topology.ranks_per_node();
  return static_cast<int>(std::max(1U, share));
}

}  // namespace mkernel::kernels

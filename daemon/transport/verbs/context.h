// What all parts of one verbs transport share.
#pragma once

#include <cstdint>

#include "daemon/transport/rdma/context.h"
#include "daemon/transport/verbs/arrivals.h"
#include "daemon/transport/verbs/path.h"

namespace mkernel::transport::verbs {

using rdma::Clock;
using rdma::Grant;
using rdma::kNever;
using rdma::Route;
using rdma::Time;

/// Proxy thread.
struct Context : rdma::Context<VerbsOptions, Path> {
  Arrivals arrivals;  ///< of all peers

  /// Random per connection: packets of an earlier one are not mistaken for its own, and it cannot be guessed
  /// from those of other connections.
  static std::uint32_t psn() { return rdma::random_bits() & 0xffffff; }
};

}  // namespace mkernel::transport::verbs

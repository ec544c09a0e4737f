// What all parts of one verbs transport share.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/transport/rdma/routes.h"
#include "daemon/transport/verbs/path.h"

namespace mkernel::transport::verbs {

using rdma::Clock;
using rdma::kNever;
using rdma::Route;
using rdma::Time;

/// Proxy thread.
struct Context {
  VerbsOptions options;
  TransportSink* sink = nullptr;
  std::unique_ptr<rdma::Registrar> registrar;                     ///< stopped before the paths go
  std::vector<std::unique_ptr<Path>> paths;                       ///< as options.ports
  std::vector<std::pair<PeerId, std::vector<std::byte>>> outbox;  ///< sent by poll()

  void say(PeerId peer, std::span<const std::byte> message) {
    outbox.emplace_back(peer, std::vector<std::byte>(message.begin(), message.end()));
  }
  /// Random per connection: packets of an earlier one are not mistaken for its own, and it cannot be guessed
  /// from those of other connections.
  static std::uint32_t psn() { return rdma::random_bits() & 0xffffff; }
};

}  // namespace mkernel::transport::verbs

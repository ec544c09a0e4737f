// The verbs transports of a node: which ports each rail uses, from the topology and the configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/app/rail_places.h"
#include "daemon/config/config.h"
#include "daemon/topology/node.h"
#include "daemon/topology/rdma_device.h"
#include "daemon/transport/rdma/library.h"
#include "daemon/transport/verbs/verbs.h"

namespace mkernel::app {

/// What transport.verbs.gid_family says.
topology::AddressFamily gid_family(const config::Verbs& verbs);

/// A node's RDMA ports in the order of its rails, with the GID chosen for each. Errors: kFailedPrecondition
/// when there is none, with why every port that is there cannot be used.
Result<std::vector<transport::VerbsPort>> rail_ports(const topology::Node& node,
                                                     const std::vector<topology::RdmaDevice>& devices,
                                                     topology::AddressFamily family);

/// The port with the GID that is right now; nothing when it cannot be used.
std::optional<transport::VerbsPort> choose_again(const transport::VerbsPort& port,
                                                 const std::vector<topology::RdmaDevice>& devices,
                                                 topology::AddressFamily family);

/// Proxy threads of one daemon. Control thread.
class VerbsRails {
 public:
  /// Opens libibverbs and looks at the node. Errors: the library's, the topology's, rail_ports()'.
  static Result<VerbsRails> open(const config::Config& config);

  /// Rail r has the r-th port, and the next ones behind it.
  Result<std::unique_ptr<transport::Transport>> make(const transport::TransportOptions& base,
                                                     std::uint32_t rail) const;
  const RailPlaces& places() const { return places_; }

 private:
  transport::VerbsOptions options_;          ///< of every rail, but for base and ports
  std::vector<transport::VerbsPort> ports_;  ///< by rail
  RailPlaces places_;
  std::uint32_t paths_ = 1;
};

}  // namespace mkernel::app

// The EFA transports of a node: which device each rail uses, from the topology and the configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/app/rail_places.h"
#include "daemon/config/config.h"
#include "daemon/topology/node.h"
#include "daemon/transport/efa/efa.h"

namespace mkernel::app {

/// The EFA devices that are rails, by rail. kFailedPrecondition when there is none: why, for each device.
Result<std::vector<std::string>> efa_devices(const topology::Node& node);

/// What one rail uses, by preference: its own device, then others that take over when it fails, `paths` in
/// all where there are so many. The nearest to its own come first, of those the ones that none of the `rails`
/// has for its own, then the next ones in the order of the rails: nodes that are alike choose alike, and the
/// rails of one dead device do not all end at the same other. `own`: efa_devices().
std::vector<std::string> efa_paths(const topology::Node& node, const std::vector<std::string>& own,
                                   std::uint32_t rail, std::uint32_t rails, std::uint32_t paths);

/// Proxy threads of one daemon. Control thread.
class EfaRails {
 public:
  /// Opens libibverbs and libefa, and looks at the node. Errors: the libraries', the topology's,
  /// efa_devices()'.
  static Result<EfaRails> open(const config::Config& config);

  /// Rail r has the r-th device, and others behind it; with more rails than devices they begin again with the
  /// first.
  Result<std::unique_ptr<transport::Transport>> make(const transport::TransportOptions& base,
                                                     std::uint32_t rail) const;
  const RailPlaces& places() const { return places_; }

 private:
  transport::EfaOptions options_;                ///< of every rail, but for base and devices
  std::vector<std::vector<std::string>> paths_;  ///< by rail
  RailPlaces places_;
};

}  // namespace mkernel::app

// The EFA transports of a node: which device each rail uses, from the topology and the configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/topology/node.h"
#include "daemon/transport/efa/efa.h"

namespace mkernel::app {

/// The EFA devices that are rails, by rail. kFailedPrecondition when there is none: why, for each device.
Result<std::vector<std::string>> efa_devices(const topology::Node& node);

/// Proxy threads of one daemon. Control thread.
class EfaRails {
 public:
  /// Opens libibverbs and libefa, and looks at the node. Errors: the libraries', the topology's,
  /// efa_devices()'.
  static Result<EfaRails> open(const config::Config& config);

  /// Rail r has the r-th device; with more rails than devices they begin again with the first.
  Result<std::unique_ptr<transport::Transport>> make(const transport::TransportOptions& base,
                                                     std::uint32_t rail) const;
  /// Where the rail's proxy thread belongs: near its device. Empty: unknown.
  const std::vector<std::uint32_t>& cpus(std::uint32_t rail) const { return cpus_[rail % cpus_.size()]; }

 private:
  transport::EfaOptions options_;                 ///< of every rail, but for base and device
  std::vector<std::string> devices_;              ///< by rail
  std::vector<std::vector<std::uint32_t>> cpus_;  ///< near each device
};

}  // namespace mkernel::app

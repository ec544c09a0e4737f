// Protection domains of one peer.
#pragma once

#include <memory>
#include <vector>

#include "daemon/transport/efa/device.h"

namespace mkernel::transport::efa {

/// One for each device of this node that connections to the peer have used. What is registered for one peer
/// is not reached over another peer's queue pairs, whatever key that peer sends.
///
/// Proxy thread. Who makes something of a domain keeps it alive.
class Domains {
 public:
  /// The device outlives this. Errors: those of the device, named.
  Result<std::shared_ptr<ibv_pd>> on(const Device& device);

 private:
  struct Entry {
    const Device* device = nullptr;
    std::shared_ptr<ibv_pd> pd;
  };
  std::vector<Entry> entries_;
};

}  // namespace mkernel::transport::efa

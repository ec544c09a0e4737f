// Protection domains of one peer.
#pragma once

#include <vector>

#include "daemon/transport/efa/device.h"

namespace mkernel::transport::efa {

/// One for each device of this node that connections to the peer have used. What is registered for one peer
/// is not reached over another peer's queue pairs, whatever key that peer sends.
///
/// Proxy thread. Outlives the queue pairs and registrations that are made of them.
class Domains {
 public:
  /// The device outlives this. Errors: those of the device, named.
  Result<ibv_pd*> on(const Device& device);

 private:
  struct Entry {
    const Device* device = nullptr;
    rdma::Object<ibv_pd> pd;
  };
  std::vector<Entry> entries_;
};

}  // namespace mkernel::transport::efa
